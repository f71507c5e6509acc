"""Projections of the chunk bucket, every format: the oracle's bits at odd sizes and row counts."""

import ctypes

import numpy as np
import pytest

from muser.formats import BlockType, quantise
from muser.graph import oracle
from muser.graph.ops import Activation

from ..bench import FLOATS, TYPES, differing, float_rows, random_blocks, random_rows, same_bits
from .chunk import Chunk, WideGemm, wide
from .layouts import placed as tiles_of
from .shim import address, device

ARCHITECTURES = ("sm_80", "sm_90")
SIZES = {
    32: ((32, 1, 17), (288, 130, 67), (576, 40, 130)),
    256: ((256, 3, 17), (768, 130, 67), (512, 40, 130)),
    1: ((200, 19, 17), (129, 65, 67), (384, 66, 130)),
}


@pytest.fixture(params=ARCHITECTURES)
def texts(request, shims):
    return shims(request.param, "tiles.cuh", "tile_rows.cuh", "gemm.cuh")


def placed(kind, raw):
    return device(tiles_of(kind, raw))


def rows_with_the_largest(rng, n, width):
    """Ordinary rows, and codes of ±127 throughout."""
    x = random_rows(rng, n, width)
    x[0] = 1.5
    x[7] = np.where(np.arange(width) % 2, 1.5, -1.5)
    return x


def assert_same(expected, actual):
    assert same_bits(expected, actual), differing(expected, actual)


def cases():
    for kind in TYPES:
        for width, outputs, n in SIZES[kind.elements]:
            yield pytest.param(kind, width, outputs, n, id=f"{kind.name}-{n}x{width}x{outputs}")


@pytest.mark.parametrize(("kind", "width", "outputs", "n"), list(cases()))
def test_equals_the_oracle(texts, rng, kind, width, outputs, n):
    raw, x = random_blocks(rng, kind, outputs, width), rows_with_the_largest(rng, n, width)
    chunk = Chunk(texts, kind, x, room=n + 128)
    (out,) = chunk.project(kind, [placed(kind, raw)], [outputs])
    assert_same(oracle.project(x, kind, raw), out[:n])
    assert np.all(out[n:].view(np.uint32) == 0xFFFFFFFF)
    assert chunk.fault() is None
    assert texts.inexact_sums == 0


@pytest.fixture
def hopper(shims):
    return shims("sm_90a", "tiles.cuh", "tile_rows.cuh", "gemm90.cuh")


K_QUANTS = (BlockType.Q4_K, BlockType.Q5_K, BlockType.Q6_K)


@pytest.mark.parametrize("kind", K_QUANTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("width", "outputs", "n", "processors"),
    [(256, 130, 17, 3), (768, 200, 130, 3), (1280, 384, 17, 2), (512, 40, 1, 4)],
)
def test_warpgroups_equal_the_oracle(hopper, rng, kind, width, outputs, n, processors):
    """Fewer tiles than processors, as many, and tiles that two processors share."""
    raw, x = random_blocks(rng, kind, outputs, width), rows_with_the_largest(rng, max(n, 9), width)
    x = x[:n]
    chunk = Chunk(hopper, kind, x, room=n + 128)
    (out,) = wide(chunk, [kind], [placed(kind, raw)], [outputs], processors)
    assert_same(oracle.project(x, kind, raw), out[:n])
    assert np.all(out[n:].view(np.uint32) == 0xFFFFFFFF)
    assert chunk.fault() is None
    assert hopper.inexact_sums == 0


def test_warpgroups_do_formats_together(hopper, rng, seed):
    """Small weights of mixed formats beside a large one, tails shared by processors."""
    width, outputs, kinds = 512, [300, 20, 129], [BlockType.Q4_K, BlockType.Q6_K, BlockType.Q5_K]
    x = rows_with_the_largest(rng, 140, width)
    pairs = list(zip(kinds, outputs, strict=True))
    raws = [random_blocks(rng, kind, count, width) for kind, count in pairs]
    chunk = Chunk(hopper, BlockType.Q4_K, x, seed=seed)
    weights = [placed(kind, raw) for kind, raw in zip(kinds, raws, strict=True)]
    outs = wide(chunk, kinds, weights, outputs, processors=5)
    for kind, raw, out in zip(kinds, raws, outs, strict=True):
        assert_same(oracle.project(x, kind, raw), out[: len(x)])


@pytest.mark.parametrize("activation", list(Activation), ids=lambda a: a.name)
@pytest.mark.parametrize("kind", K_QUANTS, ids=lambda kind: kind.name)
def test_warpgroups_gate(hopper, rng, kind, activation):
    """act(gate) · up where both leave the matrix units, as the three operators do it."""
    width, outputs, n = 512, 100, 130
    x = random_rows(rng, n, width)
    raws = [random_blocks(rng, kind, outputs, width) for _ in range(2)]
    chunk = Chunk(hopper, kind, x)
    weights = [placed(kind, raw) for raw in raws]
    gated = {Activation.SILU: 1, Activation.GELU: 2}[activation]
    out, untouched = wide(chunk, [kind] * 2, weights, [outputs] * 2, 3, gated)
    gate, up = (oracle.project(x, kind, raw) for raw in raws)
    assert_same(oracle.gated_act(gate, up, activation), out[:n])
    assert np.all(untouched.view(np.uint32) == 0xFFFFFFFF)
    assert chunk.fault() is None


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_parts_read_the_same_rows(texts, rng, kind, seed):
    width, outputs, n = 256 if kind.elements > 1 else 130, [5, 200, 64], 40
    x = random_rows(rng, n, width)
    raws = [random_blocks(rng, kind, count, width) for count in outputs]
    chunk = Chunk(texts, kind, x, seed=seed)
    outs = chunk.project(kind, [placed(kind, raw) for raw in raws], outputs)
    for raw, out in zip(raws, outs, strict=True):
        assert_same(oracle.project(x, kind, raw), out[:n])


def overflowing(kind, width, outputs):
    """Weights whose output 1 no f32 holds for activations near 2^120."""
    values = np.zeros((outputs, width), np.float32)
    values[1] = 60000
    if kind in FLOATS:
        return float_rows(kind, values)
    return quantise(kind, values)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_the_first_lost_row_is_reported(texts, kind):
    width, n = 256, 40
    x = np.ones((n, width), np.float32)
    x[[21, 35]] = 2.0**120
    raw = overflowing(kind, width, 3)
    chunk = Chunk(texts, kind, x)
    parts = [placed(kind, raw[::2]), placed(kind, raw)]
    chunk.project(kind, parts, [2, 3])
    assert chunk.fault() == (8, 21)


@pytest.mark.parametrize(("part", "gated"), [(1, 0), (0, 1), (1, 1)])
def test_warpgroups_report_the_lost_row(hopper, part, gated):
    width, n, kind = 256, 40, BlockType.Q4_K
    x = np.ones((n, width), np.float32)
    x[[21, 35]] = 2.0**120
    raw = overflowing(kind, width, 3)
    raws = [raw[[0, 2, 0]], raw[[0, 2, 0]]]
    raws[part] = raw
    chunk = Chunk(hopper, kind, x)
    wide(chunk, [kind] * 2, [placed(kind, one) for one in raws], [3, 3], 2, gated)
    assert chunk.fault() == (7 + part, 21)


def test_a_lost_product_is_reported(hopper):
    """Gate and up are finite, their product is not."""
    width, n, kind = 256, 20, BlockType.Q4_K
    x = np.full((n, width), 2.0**-20, np.float32)
    x[11] = 2.0**60
    raw = overflowing(kind, width, 3)
    chunk = Chunk(hopper, kind, x)
    wide(chunk, [kind] * 2, [placed(kind, raw)] * 2, [3, 3], 2, 1)
    assert chunk.fault() == (99, 11)


class Pieces(ctypes.Structure):
    _fields_ = (
        ("gemm", WideGemm),
        ("out", ctypes.c_void_p),
        ("most", ctypes.c_int),
        ("rows", ctypes.c_int),
    )


MOST = 1200


@pytest.fixture(scope="module")
def planned(shims):
    """Blocks' pieces `[block][…] = (tile, from, to)` of weights, rows and groups, and the tiles."""
    shim = shims("sm_90a", "tiles.cuh", "tile_rows.cuh", "gemm90.cuh", "texts/pieces.cuh")

    def plan(outputs, rows, groups, processors, gated):
        out = device(np.full((processors, MOST, 3), -1, np.int32))
        argument = Pieces(out=address(out), most=MOST, rows=rows)
        argument.gemm.parts, argument.gemm.groups = len(outputs), groups
        argument.gemm.gated = gated
        for i, count in enumerate(outputs):
            argument.gemm.part[i].outputs = count
        shim.launch("pieces", processors, 1, bytes(argument))
        width = 64 if gated else 128
        tiles = sum(-(-count // width) for count in outputs[: 1 if gated else 4]) * -(-rows // 128)
        return [[tuple(map(int, p)) for p in block if p[0] >= 0] for block in out], tiles

    return plan


@pytest.mark.parametrize("gated", [0, 1])
@pytest.mark.parametrize("groups", [1, 2, 26, 78])
@pytest.mark.parametrize("rows", [17, 300, 2048])
@pytest.mark.parametrize("outputs", [(40,), (256, 256), (4096, 256, 130, 4096)], ids=str)
def test_blocks_share_the_tiles(planned, outputs, rows, groups, gated):
    """Each group of a tile once, in the order of the chain, and no block more than its share."""
    for processors in (1, 7, 48, 132, 148):
        blocks, tiles = planned(outputs, rows, groups, processors, gated)
        steps = np.zeros((tiles, groups), int)
        done = {}
        for at, block in enumerate(blocks):
            for order, (tile, start, stop) in enumerate(block):
                steps[tile, start:stop] += 1
                done[tile, start] = (at, order, stop)
        assert np.all(steps == 1)
        loads = [sum(stop - start for _, start, stop in block) for block in blocks]
        if tiles >= processors:
            assert max(loads) - min(loads) <= 1
        for (tile, start), (at, order, _) in done.items():
            if start:
                before, early, stop = done[tile, 0]
                rounds = tiles // processors - 1
                assert (before, stop) == (at - 1, start)
                assert early == rounds
                assert order == len(blocks[at]) - 1 > rounds
