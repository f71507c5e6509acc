"""Grid attention on the f16 units: decode split over tiles, and a causal prefill."""

from dataclasses import dataclass

import numpy as np
from card import Card, Pointer, build
from numpy.typing import NDArray
from q4k import different
from table import F16_ROOF, READ_ROOF, Line

from muser.graph import conformance as page
from muser.graph.oracle import attention, snap_kv

GROUP, KV = 16, 2
PREFILL_SHARED = 2 * 65536 + 2 * 32768 + 256 + 64
STREAMED = 256e6
F32 = NDArray[np.float32]


@dataclass(slots=True)
class Cache:
    """Stored rows on the card: f16 `[positions, heads, d]` twice, steps int8 `[heads, padded]`."""

    k: Pointer
    v: Pointer
    steps: Pointer
    positions: int
    heads: int
    dim: int
    maps: tuple[object, object]

    @property
    def padded(self) -> int:
        return -(-self.positions // 128) * 128

    @property
    def bytes(self) -> int:
        return self.positions * self.heads * self.dim * 4


def decode_shared(dim: int) -> int:
    return 32768 * (dim // 64) + 2 * 16 * max(2 * dim + 16, 272) + 3 * 512 + 64 + 16


def combine_shared(tiles: int) -> int:
    return -(-tiles // 8) * 8 * 36 * 4


class Probe:
    """The kernels for one head size, and what they leave between them."""

    def __init__(self, card: Card, dim: int) -> None:
        names = ["attention"] if dim == 64 else ["warpgroup", "attention", "prefill"]
        shared = {"store_rows": 0, "decode_tiles": 120 * 1024, "combine": 200 * 1024}
        if dim == 128:
            shared["prefill"] = PREFILL_SHARED
        self.card, self.dim = card, dim
        self.kernels = card.kernels(build(names, HEAD=dim), **shared)
        self.failed = card.zeros(4)

    def cache(self, k: Pointer, v: Pointer, steps: Pointer, positions: int, heads: int) -> Cache:
        width = heads * self.dim
        maps = tuple(self.card.tensor_map(p, positions, width, 64) for p in (k, v))
        return Cache(k, v, steps, positions, heads, self.dim, maps)  # type: ignore[arg-type]

    def store(self, k: F32, v: F32) -> Cache:
        """Snap rows `[positions, heads, d]`."""
        positions, heads, _ = k.shape
        padded = -(-positions // 128) * 128
        to = [self.card.empty(k.size * 2) for _ in range(2)]
        steps = self.card.zeros(heads * padded)
        kernel, sources = self.kernels["store_rows"], (self.card.put(k), self.card.put(v))
        grid = (positions, heads)
        self.card.launch(kernel, grid, 32, *sources, *to, steps, positions, padded, self.failed)
        return self.cache(*to, steps, positions, heads)

    def duplicate(self, cache: Cache) -> Cache:
        size = cache.bytes // 2
        k, v = self.card.copy(cache.k, size), self.card.copy(cache.v, size)
        return self.cache(k, v, cache.steps, cache.positions, cache.heads)

    def scratch(self, heads: int, tiles: int) -> tuple[Pointer, Pointer]:
        rows = heads * GROUP * tiles
        return self.card.empty(rows * self.dim * 4), self.card.empty(rows * 16)

    def tiles(
        self, cache: Cache, q: Pointer, scratch, lo: int, hi: int, early: bool = True
    ) -> None:
        count = -(-hi // 128) - lo // 128
        arguments = (*cache.maps, cache.steps, q, *scratch, self.failed, lo, hi, cache.padded)
        kernel, shared = self.kernels["decode_tiles"], decode_shared(self.dim)
        grid = (count, cache.heads)
        self.card.launch(kernel, grid, 256, *arguments, shared=shared, early=early)

    def combine(self, heads: int, scratch, out: Pointer, tiles: int, early: bool = True) -> None:
        grid, kernel = (heads * GROUP, self.dim // 32), self.kernels["combine"]
        shared = combine_shared(tiles)
        arguments = (*scratch, out, self.failed, tiles)
        self.card.launch(kernel, grid, 128, *arguments, shared=shared, early=early)

    def decode(self, cache: Cache, q: Pointer, scratch, out: Pointer, lo: int, hi: int) -> None:
        self.tiles(cache, q, scratch, lo, hi)
        self.combine(cache.heads, scratch, out, -(-hi // 128) - lo // 128)

    def prefill(self, cache: Cache, q: Pointer, out: Pointer, first: int, count: int) -> None:
        arguments = (*cache.maps, cache.steps, q, out, self.failed, first, cache.padded)
        grid = (count // 8, cache.heads)
        self.card.launch(self.kernels["prefill"], grid, 384, *arguments, shared=PREFILL_SHARED)

    def fault(self) -> int:
        return int(self.card.get(self.failed, (1,), np.uint32)[0] != 0)


def oracle(q: F32, k: F32, v: F32, visible: list[tuple[int, int]]) -> F32:
    """q `[rows, heads, d]`, k and v before the snap; `[rows, heads, d]`."""
    heads, dim = k.shape[1:]
    stored = [snap_kv(x.reshape(len(x), -1), heads) for x in (k, v)]
    return attention(q, *stored, np.array(visible, np.int64), dim**-0.5).reshape(q.shape)


def inputs(rng, positions: int, dim: int, kind: str) -> tuple[F32, F32]:
    """K and V rows `[positions, KV, dim]`; 'worst' has every code at ±2047."""
    k, v = (rng.standard_normal((positions, KV, dim), np.float32) for _ in range(2))
    if kind == "wide":
        k *= rng.uniform(0.1, 12, (positions, 1, 1)).astype(np.float32)
        v = np.ldexp(v, rng.integers(-20, 6, (positions, 1, 1))).astype(np.float32)
    if kind == "worst":
        sign = np.where(np.arange(dim) % 2, -1, 1) * np.ones((positions, KV, 1))
        sign[:, 1] = 1
        k = (2047 * 2.0**-13 * sign).astype(np.float32)
        v = (2047 * 2.0**-11 * sign[:, ::-1]).astype(np.float32)
        v[1::2, 0] *= -1
    return k, v


def queries(rng, rows: int, dim: int, kind: str) -> F32:
    q = rng.standard_normal((rows, KV * GROUP, dim), np.float32)
    if kind == "worst":
        top = 8191 if dim == 128 else 16383
        q[:] = top * 2.0**-16
        q[:, 1::3, ::2] *= -1
        q[:, 2::3] = 64 * 2.0**-16
        q[:, 2::3, 0] = top * 2.0**-16
    return q


def vector_line(card: Card, vector: page.AttentionVector) -> Line:
    probe = Probe(card, vector.dim)
    q = np.zeros((1, GROUP, vector.dim), np.float32)
    q[:, :4] = vector.query()
    cache = probe.store(vector.keys()[:, None], vector.values()[:, None])
    out = card.empty(q.nbytes)
    probe.decode(cache, card.put(q), probe.scratch(1, 32), out, vector.first, vector.last)
    got = page.digest(card.get(out, q.shape, np.float32)[:, :4])
    wrong = int(got != vector.digest) + probe.fault()
    case = f"d {vector.dim}, rows {vector.first}…{vector.last} of {vector.count}"
    return Line("digest", case, 1, wrong)


def decode_line(card: Card, rng, dim: int, positions: int, lo: int, kind: str) -> Line:
    probe, (k, v) = Probe(card, dim), inputs(rng, positions, dim, kind)
    q, hi = queries(rng, 1, dim, kind), positions
    tiles = -(-hi // 128) - lo // 128
    cache, at, out = probe.store(k, v), card.put(q), card.empty(q.nbytes)
    scratch = probe.scratch(KV, tiles)
    probe.decode(cache, at, scratch, out, lo, hi)
    want = oracle(q, k, v, [(lo, hi)])
    wrong = different(card.get(out, q.shape, np.float32), want) + probe.fault()
    case = f"d {dim}, {hi - lo} of {positions}, {kind}"
    if kind != "normal":
        card.release()
        return Line("attention, decode", case, want.size, wrong)
    caches = [cache]
    while len(caches) * cache.bytes < STREAMED:
        caches.append(probe.duplicate(cache))

    def both() -> None:
        for c in caches:
            probe.decode(c, at, scratch, out, lo, hi)

    def first() -> None:
        for c in caches:
            probe.tiles(c, at, scratch, lo, hi)

    def second() -> None:
        for _ in caches:
            probe.combine(KV, scratch, out, tiles)

    whole, part, rest = (card.time(w, len(caches)).median for w in (both, first, second))
    floor = (hi - lo) * KV * dim * 4 / READ_ROOF
    rate = f"{floor / whole:.0%} of read roof ({floor * 1e6:.2f} µs); tiles alone "
    rate += f"{part * 1e6:.2f} µs, {floor / part:.0%}; combine alone {rest * 1e6:.2f} µs"
    card.release()
    return Line("attention, decode", case, want.size, wrong, whole, rate)


def prefill_line(card: Card, rng, first: int, count: int, kind: str, whole: bool) -> list[Line]:
    """Sampled queries with the oracle; `whole`: every query with the decode kernels."""
    dim, positions = 128, first + count
    probe, (k, v) = Probe(card, dim), inputs(rng, positions, dim, kind)
    q = queries(rng, count, dim, kind)
    cache, at, out = probe.store(k, v), card.put(q), card.empty(q.nbytes)
    probe.prefill(cache, at, out, first, count)
    got = card.get(out, q.shape, np.float32)
    sample = np.unique(np.r_[0, 1, count - 1, rng.choice(count, 5)])
    want = oracle(q[sample], k, v, [(0, first + int(i) + 1) for i in sample])
    case = f"d 128, {count} queries at {first}, {kind}"
    wrong = different(got[sample], want) + probe.fault()
    lines = [Line("attention, prefill", f"{case}, NumPy", want.size, wrong)]
    if whole:
        scratch, one = probe.scratch(KV, -(-positions // 128)), card.empty(q.nbytes)
        for i in range(count):
            row = i * q[0].nbytes
            place = (Pointer(at + row), scratch, Pointer(one + row))
            probe.decode(cache, *place, 0, first + i + 1)
        wrong = different(got, card.get(one, q.shape, np.float32))
        lines.append(Line("attention, prefill", f"{case}, decode kernel", q.size, wrong))
    if kind == "normal":
        seconds = card.time(lambda: probe.prefill(cache, at, out, first, count), 1).median
        pairs = count * first + count * (count + 1) // 2
        flop = 4.0 * pairs * KV * GROUP * dim / seconds
        rate = f"{flop / 1e12:.0f} TFLOP/s of one-digit work, {2 * flop / 1e12:.0f} issued, "
        rate += f"{2 * flop / F16_ROOF:.0%} of library f16"
        lines.append(Line("attention, prefill", case, 0, 0, seconds, rate))
    card.release()
    return lines


def run(card: Card, rng: np.random.Generator) -> list[Line]:
    lines = [vector_line(card, v) for v in page.ATTENTION if v.dim != 256]
    card.release()
    for dim in (128, 64):
        for positions, lo, kind in (
            (300, 5, "wide"),
            (2500, 401, "worst"),
            (4096, 100, "wide"),
            (8192, 0, "normal"),
            (32768, 0, "normal"),
        ):
            lines.append(decode_line(card, rng, dim, positions, lo, kind))
    for first, count, kind, whole in (
        (0, 512, "wide", True),
        (128, 256, "worst", True),
        (0, 2048, "normal", True),
        (6144, 2048, "normal", False),
    ):
        lines += prefill_line(card, rng, first, count, kind, whole)
    return lines
