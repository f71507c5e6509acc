"""Up to sixteen rows times weights on 8-bit matrix units: every format, slices, passes, faults."""

from functools import cache

import numpy as np
import pytest

from muser.formats import BlockType
from muser.graph import Activation, oracle

from ..bench import TYPES, random_blocks, random_rows
from . import projections as p
from .shim import device

ARCHITECTURES = ("sm_80", "sm_90")
TEXTS = ("blocks.cuh", "place.cuh", "quantise.cuh", "matvec.cuh", "batch_terms.cuh", "batch.cuh")
NO_FAULT = 2**64 - 1
SIZES = {
    32: ((32, 1), (288, 130), (576, 7), (2080, 19)),
    256: ((256, 1), (768, 130), (1280, 7), (2304, 19)),
    1: ((200, 19), (384, 130), (1160, 7)),
}


@pytest.fixture(params=ARCHITECTURES)
def shim(request, shims):
    return shims(request.param, *TEXTS)


@cache
def data(kind, width, out):
    rng = np.random.default_rng(width * 1000 + out + kind.id)
    raw = random_blocks(rng, kind, out, width)
    x = random_rows(rng, 16, width)
    x[0, :] = 1.5
    x[7, :] = np.where(np.arange(width) % 2, 1.5, -1.5)
    return raw, x, oracle.project(x, kind, raw)


def same(actual, expected):
    return np.array_equal(actual.view(np.uint32), expected.view(np.uint32))


def ready(shim, family, x, rows=16, seed=0):
    """The first rows of `x`, quantised by their own kernel; the others are garbage."""
    source, together = p.source_of(device(x)), family == "256"
    codes, scales, _ = p.quantised(shim, family, source, len(x), rows, seed, together=together)
    return p.source_of(None, p.READY, codes=codes, scales=scales, width=x.shape[1])


def cases():
    for kind in TYPES:
        for width, out in SIZES[kind.elements]:
            yield pytest.param(kind, width, out, id=f"{kind.name}-{width}x{out}")


@pytest.mark.parametrize(("kind", "width", "out"), list(cases()))
def test_every_format_equals_the_oracle(shim, kind, width, out, seed):
    raw, x, y = data(kind, width, out)
    weight = p.place(shim, kind, raw, width, seed=seed)
    plans = (
        p.Plan(grid=1, warps=5, stages=2, rows=16, count=16, slice=99, tiles=4, seed=seed),
        p.Plan(grid=1, warps=3, stages=1, rows=16, count=5, slice=2, tiles=8, seed=seed),
        p.Plan(grid=3, warps=6, stages=3, rows=16, count=11, slice=4, tiles=4, seed=seed),
        p.Plan(grid=5, warps=4, stages=4, rows=16, count=1, slice=99, tiles=4, seed=seed),
        p.Plan(grid=1, warps=4, stages=2, rows=16, count=16, slice=4, tiles=6, table=99, seed=seed),
    )
    if out > 64:  # runs; the thread blocks between two of the second have no end of a tile's
        plans += (
            p.Plan(grid=1, warps=4, stages=2, rows=16, count=16, slice=99, table=0, seed=seed),
            p.Plan(grid=3, warps=2, stages=3, rows=16, count=13, slice=99, table=0, seed=seed),
            p.Plan(grid=2, warps=4, stages=1, rows=16, count=7, slice=2, table=0, seed=seed),
        )
    for plan in plans:
        source = ready(shim, weight.family, x[: plan.count])
        outs, word = p.project(shim, [weight], source, plan, batch=True)
        assert same(outs[0][: plan.count], y[: plan.count]), plan
        assert np.all(outs[0][plan.count :].view(np.uint32) == 0xFFFFFFFF)
        assert word == NO_FAULT


WIDE = {BlockType.Q4_K: (6656, 2), BlockType.Q8_0: (3584, 1), BlockType.F16: (3400, 2)}


@pytest.mark.parametrize("kind", WIDE)
def test_several_passes_over_rows_in_slices(shim, kind, seed):
    """Each pass begins again with the first slice, which is no longer in shared memory; pieces that
    another thread block has begun come later than the others.
    """
    width, units = WIDE[kind]
    raw, x, y = data(kind, width, 70)
    weight = p.place(shim, kind, raw, width, seed=seed)
    shapes = (
        (1, 5, 13, 2, 8, 12),
        (1, 1, 16, 2, 99, 4),
        (3, 4, 16, 4, 16, 12),
        (3, 5, 9, 4, 99, 4),
        (2, 6, 16, 2, 8, 6),
    )
    for grid, warps, count, tiles, table, copies in shapes:
        plan = p.Plan(
            grid, warps, 2, 16, count, seed, slice=units, tiles=tiles, table=table, copies=copies
        )
        assert plan.copies * plan.slice < weight.units
        source = ready(shim, weight.family, x[:count])
        outs, word = p.project(shim, [weight], source, plan, batch=True)
        assert same(outs[0][:count], y[:count])
        assert word == NO_FAULT
    gate = p.place(shim, kind, raw[::-1].copy(), width)
    plan = p.Plan(2, 6, 2, 16, 16, seed, slice=units, tiles=2)
    source = ready(shim, weight.family, x)
    more = {"epilogue": p.OUT_SILU, "act_entry": 40}
    outs, _ = p.project(shim, [gate, weight], source, plan, batch=True, **more)
    assert same(outs[0], oracle.gated_act(np.ascontiguousarray(y[:, ::-1]), y, Activation.SILU))


def test_largest_sums_of_the_grid(shim):
    """2047 · 8191 · 128, the largest integer that a block of a projection holds."""
    signs = np.array([[1, 1], [1, -1], [-1, -1]], np.float32)
    x, w = np.tile(np.float32(8191) * signs, 128), np.tile(np.float32(2047 / 1024) * signs, 128)
    raw = w.astype(np.float16).view(np.uint8)
    want = oracle.project(x, BlockType.F16, raw)
    assert abs(want).max() == 2047 * 8191 / 1024 * 256
    weight = p.place(shim, BlockType.F16, raw, 256)
    plan = p.Plan(rows=16, count=3, slice=99)
    outs, _ = p.project(shim, [weight], ready(shim, "grid", x), plan, batch=True)
    assert same(outs[0][:3], want)


@pytest.mark.parametrize("count", range(1, 17))
def test_any_number_of_rows(shim, count):
    raw, x, y = data(BlockType.Q4_K, 768, 130)
    weight = p.place(shim, BlockType.Q4_K, raw, 768)
    plan = p.Plan(grid=2, warps=6, rows=16, count=count, slice=99)
    outs, _ = p.project(shim, [weight], ready(shim, "256", x[:count]), plan, batch=True)
    assert same(outs[0][:count], y[:count])


def test_parts_of_several_formats(shim, seed):
    groups = (
        (
            768,
            ((BlockType.Q4_K, 70), (BlockType.Q6_K, 3), (BlockType.Q5_K, 1), (BlockType.Q4_K, 41)),
        ),
        (416, ((BlockType.Q8_0, 70), (BlockType.Q5_1, 5), (BlockType.Q4_0, 33))),
        (300, ((BlockType.F16, 33), (BlockType.F32, 2), (BlockType.BF16, 20))),
    )
    for width, parts in groups:
        raws = [data(kind, width, out)[0] for kind, out in parts]
        weights = [
            p.place(shim, kind, raw, width) for (kind, _), raw in zip(parts, raws, strict=True)
        ]
        x = random_rows(np.random.default_rng(3), 13, width)
        for grid, warps in ((1, 7), (4, 7), (1, 3), (2, 4)):
            plan = p.Plan(grid=grid, warps=warps, rows=16, count=13, slice=2, seed=seed)
            source = ready(shim, weights[0].family, x)
            outs, word = p.project(shim, weights, source, plan, batch=True)
            for out, (kind, _), raw in zip(outs, parts, raws, strict=True):
                assert same(out[:13], oracle.project(x, kind, raw))
            assert word == NO_FAULT


@pytest.mark.parametrize(
    "kinds",
    [
        (BlockType.Q6_K, BlockType.Q4_K),
        (BlockType.Q4_1, BlockType.Q5_0),
        (BlockType.BF16, BlockType.F16),
    ],
)
def test_gated_activation_behind(shim, kinds, seed):
    width = 1024
    raws = [data(kind, width, 37)[0] for kind in kinds]
    weights = [p.place(shim, kind, raw, width) for kind, raw in zip(kinds, raws, strict=True)]
    x = random_rows(np.random.default_rng(3), 16, width)
    gate, up = (oracle.project(x, w.kind, w.raw) for w in weights)
    for epilogue, act, grid, warps, slices, tiles in (
        (p.OUT_SILU, Activation.SILU, 2, 6, 2, 4),
        (p.OUT_GELU, Activation.GELU, 2, 6, 2, 2),
        (p.OUT_SILU, Activation.SILU, 1, 5, 2, 6),
        (p.OUT_SILU, Activation.SILU, 1, 4, 99, 6),
        (p.OUT_GELU, Activation.GELU, 1, 6, 99, 8),
        (p.OUT_GELU, Activation.GELU, 1, 5, 1, 2),
    ):
        if weights[0].family != "32":
            slices = max(slices, 2)
        plan = p.Plan(
            grid=grid, warps=warps, rows=16, count=16, slice=slices, tiles=tiles, seed=seed
        )
        source = ready(shim, weights[0].family, x)
        more = {"epilogue": epilogue, "act_entry": 40}
        outs, word = p.project(shim, weights, source, plan, batch=True, **more)
        assert same(outs[0], oracle.gated_act(gate, up, act))
        assert word == NO_FAULT


def test_scale_and_softcap_behind(shim, seed):
    raw, x, y = data(BlockType.Q6_K, 768, 130)
    weight = p.place(shim, BlockType.Q6_K, raw, 768)
    inverse = float(np.float32(1.0 / 30.0))
    more = {"epilogue": p.OUT_LOGITS, "scale": 0.25, "cap": 30.0, "inverse_cap": inverse}
    plan = p.Plan(rows=16, count=16, slice=99, seed=seed)
    outs, word = p.project(shim, [weight], ready(shim, "256", x), plan, batch=True, **more)
    assert same(outs[0], oracle.softcap(oracle.scale(y, 0.25), 30.0))
    assert word == NO_FAULT


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", [BlockType.Q4_K, BlockType.Q4_1, BlockType.BF16])
def test_faults(shim, kind):
    width = SIZES[kind.elements][1][0]
    raw, x, _ = data(kind, width, 21)
    weight = p.place(shim, kind, raw, width)
    plan = p.Plan(rows=16, count=9, slice=99)
    big = x[:9].copy()
    big[8] *= np.float32(2.0**122)
    source = ready(shim, weight.family, big)
    assert p.project(shim, [weight], source, plan, batch=True)[1] == 20 << 32 | 8
    wide = x[:9].copy()
    wide[8] *= np.float32(2.0**64)
    source = ready(shim, weight.family, wide)
    more = {"epilogue": p.OUT_SILU, "act_entry": 40}
    assert p.project(shim, [weight], source, plan, batch=True)[1] == NO_FAULT
    assert p.project(shim, [weight] * 2, source, plan, batch=True, **more)[1] == 40 << 32 | 8
