"""Grid attention on the f16 units: decode split over tiles, and a causal prefill."""

from dataclasses import dataclass, replace

import numpy as np
from card import Card, Pointer, build
from numpy.typing import NDArray
from q4k import different
from table import F16_ROOF, READ_ROOF, Line

from muser.graph import conformance as page
from muser.graph.arithmetic import grid_rows, power_of_two, z
from muser.graph.oracle import _attend_tile, _merge, attention, snap_kv

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


Scratch = tuple[Pointer, Pointer]  # f(O), then N, M, f(D) of every tile and head


def decode_shared(dim: int) -> int:
    """struct Decode of decode.cu."""
    return 3 * 16384 * (dim // 64) + 32 * max(2 * dim + 16, 272) + 3 * 512 + 64 + 24


def combine_shared(tiles: int) -> int:
    return (-(-tiles // 8) * 8 + 8) * (32 * 4 + 16 + 16)


class Probe:
    """The kernels for one head size. `merged`: so many tiles form a group, a rule tried only."""

    def __init__(self, card: Card, dim: int, merged: int = 1) -> None:
        names = ["attention", "decode"]
        shared = {"store_rows": 0, "decode_tiles": decode_shared(dim), "combine": 200 * 1024}
        if dim == 128:
            names += ["warpgroup", "prefill"]
            shared["prefill"] = PREFILL_SHARED
        self.card, self.dim, self.merged = card, dim, merged
        self.kernels = card.kernels(build(names, HEAD=dim, MERGE=merged), **shared)
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

    def places(self, span: tuple[int, int]) -> int:
        """Tiles, or groups of tiles, that hold visible rows."""
        tiles = 128 * self.merged
        return -(-span[1] // tiles) - span[0] // tiles

    def scratch(self, heads: int, span: tuple[int, int]) -> Scratch:
        rows = heads * GROUP * self.places(span)
        return self.card.empty(rows * self.dim * 4), self.card.empty(rows * 16)

    def tiles(self, cache: Cache, q: Pointer, scratch: Scratch, span: tuple[int, int]) -> None:
        grid = (min(self.places(span), self.card.processors), cache.heads)
        arguments = (*cache.maps, cache.steps, q, *scratch, self.failed, *span, cache.padded)
        shared, kernel = decode_shared(self.dim), self.kernels["decode_tiles"]
        self.card.launch(kernel, grid, 256, *arguments, shared=shared, early=True)

    def combine(self, heads: int, scratch: Scratch, span: tuple[int, int], out: Pointer) -> None:
        grid, kernel = (heads * GROUP, self.dim // 32), self.kernels["combine"]
        arguments = (*scratch, out, self.failed, self.places(span))
        shared = combine_shared(self.places(span))
        self.card.launch(kernel, grid, 128, *arguments, shared=shared, early=True)

    def decode(
        self, cache: Cache, q: Pointer, scratch: Scratch, span: tuple[int, int], out: Pointer
    ) -> None:
        self.tiles(cache, q, scratch, span)
        self.combine(cache.heads, scratch, span, out)

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


def grouped_oracle(q: F32, k: F32, v: F32, span: tuple[int, int], merged: int) -> F32:
    """The rule that was tried: groups of `merged` tiles from fresh, merged by the same step."""
    heads, dim = k.shape[1:]
    keys, values = (snap_kv(x.reshape(len(x), -1), heads) for x in (k, v))
    qi, eq = grid_rows(q, 20 - int(dim - 1).bit_length(), -60)
    query = qi.reshape(1, heads, GROUP, dim), eq.reshape(1, heads, GROUP)
    c, total = np.float32(dim**-0.5 * 1.4426950408889634), None
    for group in range(span[0] // 128 // merged, -(-span[1] // (128 * merged))):
        state = None
        for t in range(group * merged, (group + 1) * merged):
            rows = np.arange(max(128 * t, span[0]), min(128 * t + 128, span[1]))
            if len(rows):
                tile = _attend_tile(
                    query, keys[rows], values[rows], np.ones((1, len(rows)), bool), c
                )
                state = _merge(state, tile, np.ones(1, bool))
        assert state is not None
        total = _merge(total, state, np.ones(1, bool))
    assert total is not None
    R, X, den, acc = total
    return z((acc / den[..., None]) * power_of_two(X - R + 8)[..., None]).reshape(q.shape)


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
    probe.decode(cache, card.put(q), probe.scratch(1, span), span, out)
    got = page.digest(card.get(out, q.shape, np.float32)[:, :4])
    wrong = int(got != vector.digest) + probe.fault()
    case = f"d {vector.dim}, rows {vector.first}…{vector.last} of {vector.count}"
    return Line("digest", case, 1, wrong)


def decode_line(
    card: Card, rng, dim: int, positions: int, lo: int, kind: str, merged: int = 1
) -> Line:
    probe, (k, v) = Probe(card, dim, merged), inputs(rng, positions, dim, kind)
    q, span = queries(rng, 1, dim, kind), (lo, positions)
    cache, at, out = probe.store(k, v), card.put(q), card.empty(q.nbytes)
    scratch = probe.scratch(KV, span)
    probe.decode(cache, at, scratch, span, out)
    want = oracle(q, k, v, [span]) if merged == 1 else grouped_oracle(q, k, v, span, merged)
    wrong = different(card.get(out, q.shape, np.float32), want) + probe.fault()
    case = f"d {dim}, {positions - lo} of {positions}, {kind}"
    case += f", groups of {merged} tiles" if merged > 1 else ""
    line = Line("attention, decode", case, want.size, wrong)
    if kind == "normal":
        line = decode_time(probe, cache, at, scratch, span, out, line)
    card.release()
    return line


def decode_time(probe, cache, at, scratch, span, out, line: Line) -> Line:
    caches = [cache]
    while len(caches) * cache.bytes < STREAMED:
        caches.append(probe.duplicate(cache))

    def both() -> None:
        for c in caches:
            probe.decode(c, at, scratch, span, out)

    def tiles() -> None:
        for c in caches:
            probe.tiles(c, at, scratch, span)

    def chain() -> None:
        for _ in caches:
            probe.combine(KV, scratch, span, out)

    whole, part, rest = (probe.card.time(w, len(caches)).median for w in (both, tiles, chain))
    floor = (span[1] - span[0]) * KV * probe.dim * 4 / READ_ROOF
    rate = f"{floor / whole:.0%} of read roof ({floor * 1e6:.2f} µs); alone: tiles "
    rate += f"{part * 1e6:.2f} µs ({floor / part:.0%}), chain {rest * 1e6:.2f} µs"
    return replace(line, seconds=whole, rate=rate)


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
        scratch, one = probe.scratch(KV, (0, positions)), card.empty(q.nbytes)
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
            lines.append(decode_line(card, rng, dim, positions, lo, kind))
    for positions, lo, kind in (
        (2500, 401, "cliff"),
        (32768, 0, "normal"),
        (131008, 0, "normal"),
    ):
        lines.append(decode_line(card, rng, 128, positions, lo, kind, merged=8))
    for first, count, kind, whole in (
        (0, 512, "wide", True),
        (128, 256, "worst", True),
        (0, 1024, "cliff", True),
        (0, 2048, "normal", True),
        (6144, 2048, "normal", False),
    ):
        lines += prefill_line(card, rng, first, count, kind, whole)
    return lines
