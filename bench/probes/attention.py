"""Grid attention on the f16 units: decode split over tiles, and a causal prefill."""

from dataclasses import dataclass, replace

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
    """Stored rows on the card: f16 `[heads, padded, d]` twice, steps int8 `[heads, padded]`."""

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
        return self.padded * self.heads * self.dim * 4


@dataclass(frozen=True, slots=True)
class Scratch:
    """f(O), then N, M, D of every tile and head; two sets of flags."""

    out: Pointer
    sums: Pointer
    done: tuple[Pointer, Pointer]


def decode_shared(dim: int) -> int:
    """struct Decode of attention.cu."""
    ring, digits = 6 * 16384 * (dim // 64), 32 * (2 * dim + 16) + 2 * 32 * 272
    return ring + digits + 6 * 512 + 512 + 64 + 48


def combine_shared(tiles: int) -> int:
    return (tiles + 8) * (32 * 4 + 16 + 16)


class Probe:
    """The kernels for one head size, and what they leave between them."""

    def __init__(self, card: Card, dim: int) -> None:
        names = ["attention", "decode"]
        shared = {"store_rows": 0, "decode_tiles": decode_shared(dim), "combine": 200 * 1024}
        if dim == 128:
            names += ["warpgroup", "prefill"]
            shared["prefill"] = PREFILL_SHARED
        self.card, self.dim = card, dim
        self.kernels = card.kernels(build(names, HEAD=dim), **shared)
        self.failed = card.zeros(4)

    def cache(self, k: Pointer, v: Pointer, steps: Pointer, positions: int, heads: int) -> Cache:
        rows = heads * -(-positions // 128) * 128
        maps = tuple(self.card.tensor_map(p, rows, self.dim, 64) for p in (k, v))
        return Cache(k, v, steps, positions, heads, self.dim, maps)  # type: ignore[arg-type]

    def store(self, k: F32, v: F32) -> Cache:
        """Snap rows `[positions, heads, d]`."""
        positions, heads, _ = k.shape
        padded = -(-positions // 128) * 128
        to = [self.card.zeros(padded * heads * self.dim * 2) for _ in range(2)]
        steps = self.card.zeros(heads * padded)
        kernel, sources = self.kernels["store_rows"], (self.card.put(k), self.card.put(v))
        grid = (positions, heads)
        self.card.launch(kernel, grid, 32, *sources, *to, steps, padded, self.failed)
        return self.cache(*to, steps, positions, heads)

    def duplicate(self, cache: Cache) -> Cache:
        size = cache.bytes // 2
        k, v = self.card.copy(cache.k, size), self.card.copy(cache.v, size)
        return self.cache(k, v, cache.steps, cache.positions, cache.heads)

    def scratch(self, heads: int, tiles: int) -> Scratch:
        rows, flags = heads * GROUP * tiles, 4 * heads * tiles
        out, sums = self.card.empty(rows * self.dim * 4), self.card.empty(rows * 16)
        return Scratch(out, sums, (self.card.zeros(flags), self.card.zeros(flags)))

    def tiles(
        self,
        cache: Cache,
        q: Pointer,
        scratch: Scratch,
        span: tuple[int, int],
        out: Pointer | None = None,
        turn: int = 0,
    ) -> None:
        """The tiles alone; with `out` the chain runs beside them, `turn` 0 and 1 alternating."""
        none = Pointer(0)
        flags = (scratch.done[turn], scratch.done[1 - turn]) if out else (none, none)
        work = (cache.steps, q, scratch.out, scratch.sums, out or none, *flags, self.failed)
        grid, shared = (self.card.processors // KV, cache.heads), decode_shared(self.dim)
        arguments = (*cache.maps, *work, *span, cache.padded)
        kernel = self.kernels["decode_tiles"]
        self.card.launch(kernel, grid, 544, *arguments, shared=shared, early=True)

    def combine(self, heads: int, scratch: Scratch, out: Pointer, tiles: int) -> None:
        grid, kernel = (heads * GROUP, self.dim // 32), self.kernels["combine"]
        arguments = (scratch.out, scratch.sums, out, self.failed, tiles)
        shared = combine_shared(tiles)
        self.card.launch(kernel, grid, 128, *arguments, shared=shared, early=True)

    def decode(
        self, cache: Cache, q: Pointer, scratch: Scratch, span: tuple[int, int], out: Pointer
    ) -> None:
        self.tiles(cache, q, scratch, span)
        self.combine(cache.heads, scratch, out, -(-span[1] // 128) - span[0] // 128)

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
    if kind == "cliff":  # maxima of tiles further apart than 100 binades
        factor = rng.choice([0.05, 1, 30, 90], -(-positions // 128))
        k *= np.repeat(factor, 128)[:positions, None, None].astype(np.float32)
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
    span = (vector.first, vector.last)
    probe.decode(cache, card.put(q), probe.scratch(1, 32), span, out)
    got = page.digest(card.get(out, q.shape, np.float32)[:, :4])
    wrong = int(got != vector.digest) + probe.fault()
    case = f"d {vector.dim}, rows {vector.first}…{vector.last} of {vector.count}"
    return Line("digest", case, 1, wrong)


def decode_lines(card: Card, rng, dim: int, positions: int, lo: int, kind: str) -> list[Line]:
    """Both forms of one case against the oracle, and their times for 'normal'."""
    probe, (k, v) = Probe(card, dim), inputs(rng, positions, dim, kind)
    q, span = queries(rng, 1, dim, kind), (lo, positions)
    cache, at, out = probe.store(k, v), card.put(q), card.empty(q.nbytes)
    scratch = probe.scratch(KV, -(-positions // 128) - lo // 128)
    want, case = oracle(q, k, v, [span]), f"d {dim}, {positions - lo} of {positions}, {kind}"
    probe.decode(cache, at, scratch, span, out)
    wrong = different(card.get(out, q.shape, np.float32), want) + probe.fault()
    lines = [Line("attention, decode", f"{case}, two kernels", want.size, wrong)]
    wrong = 0
    for turn in (0, 1, 0, 1):
        card.poison(out, q.nbytes)
        probe.tiles(cache, at, scratch, span, out, turn)
        wrong += different(card.get(out, q.shape, np.float32), want) + probe.fault()
    lines.append(Line("attention, decode", f"{case}, one kernel", 4 * want.size, wrong))
    if kind == "normal":
        lines = decode_times(probe, cache, at, scratch, span, out, lines)
    card.release()
    return lines


def decode_times(probe, cache, at, scratch, span, out, lines: list[Line]) -> list[Line]:
    caches = [cache]
    while len(caches) * cache.bytes < STREAMED or len(caches) % 2:
        caches.append(probe.duplicate(cache))

    def two() -> None:
        for c in caches:
            probe.decode(c, at, scratch, span, out)

    def tiles() -> None:
        for c in caches:
            probe.tiles(c, at, scratch, span)

    def chain() -> None:
        for _ in caches:
            probe.combine(KV, scratch, out, -(-span[1] // 128) - span[0] // 128)

    def one() -> None:
        for i, c in enumerate(caches):
            probe.tiles(c, at, scratch, span, out, i % 2)

    both, part, rest, single = (
        probe.card.time(work, len(caches)).median for work in (two, tiles, chain, one)
    )
    floor = (span[1] - span[0]) * KV * probe.dim * 4 / READ_ROOF
    share = f"of read roof ({floor * 1e6:.2f} µs)"
    parts = f"tiles {part * 1e6:.2f} µs, chain {rest * 1e6:.2f} µs alone"
    return [
        replace(lines[0], seconds=both, rate=f"{floor / both:.0%} {share}; {parts}"),
        replace(lines[1], seconds=single, rate=f"{floor / single:.0%} {share}"),
    ]


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
            span = (0, first + i + 1)
            probe.decode(cache, Pointer(at + row), scratch, span, Pointer(one + row))
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
            (4096, 0, "cliff"),
            (8192, 0, "normal"),
            (32768, 0, "normal"),
            (131008, 0, "normal"),
        ):
            lines += decode_lines(card, rng, dim, positions, lo, kind)
    for first, count, kind, whole in (
        (0, 512, "wide", True),
        (128, 256, "worst", True),
        (0, 1024, "cliff", True),
        (0, 2048, "normal", True),
        (6144, 2048, "normal", False),
    ):
        lines += prefill_line(card, rng, first, count, kind, whole)
    return lines
