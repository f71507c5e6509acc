"""One to four rows times weights: every format, what is fused before and after, and faults."""

from functools import cache

import numpy as np
import pytest

from muser.errors import ArithmeticFault
from muser.formats import BlockType
from muser.graph import Activation, oracle
from muser.graph.arithmetic import z

from ..bench import TYPES, random_blocks, random_rows
from . import projections as p
from .layouts import placed
from .shim import device

ARCHITECTURES = ("sm_80", "sm_90")
TEXTS = ("blocks.cuh", "place.cuh", "quantise.cuh", "matvec.cu")
NO_FAULT = 2**64 - 1
SIZES = {
    32: ((32, 1), (288, 130), (576, 7), (2080, 19)),
    256: ((256, 1), (768, 130), (1280, 7)),
    1: ((200, 19), (384, 130), (1160, 7)),
}


@pytest.fixture(params=ARCHITECTURES)
def shim(request, shims):
    return shims(request.param, *TEXTS)


@cache
def data(kind, width, out, rows=13):
    rng = np.random.default_rng(width * 1000 + out + kind.id)
    raw = random_blocks(rng, kind, out, width)
    x = random_rows(rng, rows, width)
    x[0, :] = 1.5
    return raw, x, oracle.project(x, kind, raw)


def same(actual, expected):
    return np.array_equal(actual.view(np.uint32), expected.view(np.uint32))


def cases():
    for kind in TYPES:
        for width, out in SIZES[kind.elements]:
            yield pytest.param(kind, width, out, id=f"{kind.name}-{width}x{out}")


@pytest.mark.parametrize(("kind", "width", "out"), list(cases()))
def test_every_format_equals_the_oracle(shim, kind, width, out, seed):
    raw, x, y = data(kind, width, out)
    weight = p.place(shim, kind, raw, width, seed=seed)
    plans = (
        p.Plan(grid=1, warps=5, stages=4, seed=seed, pace=270),
        p.Plan(grid=5, warps=3, stages=1, tiles=1, seed=seed, late=True, lasts=2),
        p.Plan(grid=3, warps=4, stages=2, rows=4, count=2, tiles=2, seed=seed, pace=4000),
        p.Plan(grid=2, warps=5, stages=3, rows=4, count=3, seed=seed, late=True),
    )
    first = 0
    for plan in plans:
        rows = device(x[first : first + plan.rows])
        outs, word = p.project(shim, [weight], p.source_of(rows), plan)
        assert same(outs[0][: plan.count], y[first : first + plan.count]), plan
        assert np.all(outs[0][plan.count :].view(np.uint32) == 0xFFFFFFFF)
        assert word == NO_FAULT
        first += plan.count
    assert int(weight.word[0]) == NO_FAULT


@pytest.mark.parametrize("kind", [BlockType.Q4_K, BlockType.Q6_K, BlockType.Q5_1, BlockType.BF16])
@pytest.mark.parametrize("rows", [1, 4])
def test_thread_blocks_that_share_tiles_hand_their_chains_on(shim, kind, rows, seed):
    """Three tiles of eleven units on up to thirty thread blocks, some of which own nothing."""
    width, out = (2816, 40) if kind.elements > 1 else (1408, 40)
    raw, x, y = data(kind, width, out, rows=rows)
    weight = p.place(shim, kind, raw, width)
    for grid, lasts in ((2, 0), (5, 1), (7, 0), (9, 2), (30, 0)):
        plan = p.Plan(grid=grid, warps=3, rows=rows, count=rows, tiles=1, seed=seed, lasts=lasts)
        outs, word = p.project(shim, [weight], p.source_of(device(x)), plan)
        assert same(outs[0], y), plan
        assert word == NO_FAULT


@pytest.mark.parametrize("rows", [1, 4])
def test_a_gate_whose_tiles_are_shared(shim, rows, seed):
    width, kinds = 2816, (BlockType.Q5_K, BlockType.Q4_K)
    raws = [data(kind, width, 40)[0] for kind in kinds]
    weights = [p.place(shim, k, raw, width) for k, raw in zip(kinds, raws, strict=True)]
    x = random_rows(np.random.default_rng(3), rows, width)
    gate, up = (oracle.project(x, w.kind, w.raw) for w in weights)
    for grid in (2, 5, 8):
        plan = p.Plan(grid=grid, warps=4, rows=rows, count=rows, tiles=2, seed=seed)
        more = {"epilogue": p.OUT_GELU, "act_entry": 40}
        outs, word = p.project(shim, weights, p.source_of(device(x)), plan, **more)
        assert same(outs[0], oracle.gated_act(gate, up, Activation.GELU))
        assert word == NO_FAULT


@pytest.mark.parametrize("kind", [BlockType.Q4_K, BlockType.Q6_K, BlockType.Q8_0, BlockType.F16])
@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_terms_wait_until_those_before_them_have_been_read(shim, kind, tiles, seed):
    """Of two to four rows, whose chains are walked meanwhile; a thread block owns nine tiles."""
    width, out = SIZES[kind.elements][1]
    raw, x, y = data(kind, width, out)
    weight = p.place(shim, kind, raw, width)
    for warps, count in ((14 if kind.elements == 256 else 6, 4), (1, 2)):
        plan = p.Plan(grid=1, warps=warps, stages=2, rows=4, count=count, tiles=tiles, seed=seed)
        outs, word = p.project(shim, [weight], p.source_of(device(x[:4])), plan)
        assert same(outs[0][:count], y[:count])
        assert np.all(outs[0][count:].view(np.uint32) == 0xFFFFFFFF)
        assert word == NO_FAULT


def test_a_gate_whose_terms_wait(shim, seed):
    width = 768
    kinds = (BlockType.Q4_K, BlockType.Q5_K)
    raws = [data(kind, width, 130)[0] for kind in kinds]
    weights = [p.place(shim, k, raw, width) for k, raw in zip(kinds, raws, strict=True)]
    x = random_rows(np.random.default_rng(3), 3, width)
    gate, up = (oracle.project(x, w.kind, w.raw) for w in weights)
    for grid, warps in ((1, 9), (2, 3)):
        plan = p.Plan(grid=grid, warps=warps, rows=4, count=3, tiles=2, seed=seed)
        more = {"epilogue": p.OUT_SILU, "act_entry": 40}
        outs, word = p.project(shim, weights, p.source_of(device(x)), plan, **more)
        assert same(outs[0][:3], oracle.gated_act(gate, up, Activation.SILU))
        assert word == NO_FAULT


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_weights_in_their_tiles(shim, kind):
    """By the kernels and by NumPy; outputs that pad are zeros."""
    width, out = SIZES[kind.elements][1]
    raw = data(kind, width, out)[0]
    weight = p.place(shim, kind, raw, width, pieces=3)
    expected = placed(kind, raw)
    assert len(expected) == 16
    assert np.array_equal(weight.codes, expected)


@pytest.mark.parametrize("kind", [BlockType.Q4_K, BlockType.Q5_1, BlockType.F16])
def test_quantised_beforehand(shim, kind, seed):
    """READY, for rows of the kernels that buckets 4 and 16 use; rows beyond the count stay."""
    width, out = SIZES[kind.elements][1]
    raw, x, y = data(kind, width, out)
    weight = p.place(shim, kind, raw, width)
    rows = device(x[:4])
    codes, scales, _ = p.quantised(shim, weight.family, p.source_of(rows), 3, 4, seed)
    assert np.all(codes[3] == 0xFF)
    source = p.source_of(None, p.READY, codes=codes, scales=scales, width=width)
    outs, word = p.project(shim, [weight], source, p.Plan(warps=5, rows=4, count=3, seed=seed))
    assert same(outs[0][:3], y[:3])
    assert word == NO_FAULT


@pytest.mark.parametrize("block", [32, 256])
def test_quantised_rows_are_the_oracles(shim, block):
    width = 1056 if block == 32 else 1280
    x = random_rows(np.random.default_rng(5), 13, width)
    codes, scales, _ = p.quantised(shim, str(block), p.source_of(device(x)), 13, 13)
    q, s = oracle.quantise_rows(x, block)
    groups = codes.shape[1]
    whole = np.zeros((13, groups * 256), np.int64)
    whole[:, :width] = q.reshape(13, -1)
    assert np.array_equal(codes[:, :, :256].view(np.int8).reshape(13, -1), whole)
    sums = np.ascontiguousarray(codes[:, :, 256:]).view(np.int16).reshape(13, -1)
    assert np.array_equal(sums, whole.reshape(13, -1, 32).sum(axis=2))
    assert same(scales[:, : s.shape[1]], s)
    assert not scales[:, s.shape[1] :].any()


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
        made = [data(kind, width, out) for kind, out in parts]
        weights = [
            p.place(shim, kind, raw, width)
            for (kind, _), (raw, _, _) in zip(parts, made, strict=True)
        ]
        x = random_rows(np.random.default_rng(3), 1, width)
        for grid in (1, 4, 9):
            plan = p.Plan(grid=grid, warps=6, stages=2, seed=seed, lasts=grid // 3)
            outs, word = p.project(shim, weights, p.source_of(device(x)), plan)
            for out, (kind, _), (raw, _, _) in zip(outs, parts, made, strict=True):
                assert same(out, oracle.project(x, kind, raw))
            assert word == NO_FAULT


WORST = np.float32(8191) * np.array([[1, 1], [1, -1], [-1, -1]], np.float32)


def test_largest_sums_of_the_grid(shim):
    """2047 · 8191 · 128, the largest integer that a block of a projection holds."""
    x = np.tile(WORST, 128)
    raw = (x[:, :256] / np.float32(8191) * np.float32(2047 / 1024)).astype(np.float16)
    want = oracle.project(x, BlockType.F16, raw.view(np.uint8))
    assert abs(want).max() == 2047 * 8191 / 1024 * 256
    weight = p.place(shim, BlockType.F16, raw.view(np.uint8), 256)
    for row, expected in zip(x, want, strict=True):
        outs, _ = p.project(shim, [weight], p.source_of(device(row[None])), p.Plan())
        assert same(outs[0][0], expected)


WIDE = {"256": 768, "32": 1056, "grid": 1160}
KINDS = {"256": BlockType.Q6_K, "32": BlockType.Q4_1, "grid": BlockType.BF16}
FAMILIES = tuple(WIDE)
MADE = (
    *WIDE.items(),
    *(("256", width) for width in (1536, 2304, 4352, 8448)),
    *(("32", width) for width in (1024, 2304, 4352)),
    *(("grid", width) for width in (512, 2304, 4352)),
)
"""Rows that are held in registers meanwhile have widths that 256 divides, up to 8,192; from 2,304
on those who go ahead have something to quantise.
"""


def fitting(width, **more):
    """A launch whose rows, terms and rings fit into shared memory for every family."""
    return p.Plan(warps=8 if width <= 2304 else 2, tiles=4 if width <= 2304 else 1, **more)


def vectors(width, rows):
    """Two arrays of rows and two weights of norms, on the card."""
    rng = np.random.default_rng(11)
    x, other = (random_rows(rng, rows, width) for _ in range(2))
    weights = [z(rng.standard_normal(width).astype(np.float32)) for _ in range(2)]
    return [device(one) for one in (x, other, *weights)]


@pytest.mark.parametrize(("family", "width"), MADE)
@pytest.mark.parametrize("rows", [1, 4])
def test_norm_before(shim, family, width, rows, seed):
    kind = KINDS[family]
    raw, _, _ = data(kind, width, 21)
    weight = p.place(shim, kind, raw, width)
    x, _, w, _ = vectors(width, rows)
    plan = fitting(width, rows=rows, count=rows, seed=seed)
    inputs = [
        (p.source_of(x, p.NORM, weight=w, eps=1e-5), oracle.rms_norm(x, w, 1e-5)),
        (p.source_of(x, p.NORM, eps=1e-6), oracle.rms_norm(x, None, 1e-6)),
    ]
    for source, row in inputs:
        outs, word = p.project(shim, [weight], source, plan)
        assert same(outs[0], oracle.project(row, kind, raw))
        assert word == NO_FAULT


@pytest.mark.parametrize(("family", "width"), MADE)
@pytest.mark.parametrize("normed", [False, True])
def test_residual_before(shim, family, width, normed, seed):
    """The sum goes to another buffer; rows may be taken in any order; both kernels agree."""
    kind = KINDS[family]
    raw, _, _ = data(kind, width, 21)
    weight = p.place(shim, kind, raw, width)
    x, stream, w, w2 = vectors(width, 5)
    take = device(np.array([4, 0, 3, 1], np.int32))
    summed = p.poisoned((4, width), np.float32)
    more = {"branch_norm": 1, "branch_weight": w, "branch_eps": 1e-8} if normed else {}
    source = p.source_of(
        x, p.RESIDUAL, other=stream, weight=w2, eps=1e-5, sum=summed, take=take, **more
    )
    branch = oracle.rms_norm(x, w, 1e-8) if normed else x
    total = oracle.add(branch, stream)[take]
    normal = oracle.rms_norm(total, w2, 1e-5)
    outs, word = p.project(shim, [weight], source, fitting(width, rows=4, count=3, seed=seed))
    assert same(outs[0][:3], oracle.project(normal, kind, raw)[:3])
    assert same(summed[:3], total[:3])
    assert np.all(summed[3:].view(np.uint32) == 0xFFFFFFFF)
    assert word == NO_FAULT
    codes, scales, word = p.quantised(shim, weight.family, source, 4, 4, seed)
    ready = p.source_of(None, p.READY, codes=codes, scales=scales, width=width)
    again, _ = p.project(shim, [weight], ready, fitting(width, rows=4, count=4, seed=seed))
    assert same(again[0], oracle.project(normal, kind, raw))
    assert same(summed, total)
    assert int(word[0]) == NO_FAULT


@pytest.mark.parametrize("family", FAMILIES)
def test_gated_activation_behind(shim, family, seed):
    kind, width = KINDS[family], WIDE[family]
    other = {"256": BlockType.Q4_K, "32": BlockType.Q5_0, "grid": BlockType.F16}[family]
    raws = data(kind, width, 37)[0], data(other, width, 37)[0]
    weights = [p.place(shim, k, raw, width) for k, raw in zip((kind, other), raws, strict=True)]
    x = random_rows(np.random.default_rng(3), 2, width)
    gate, up = (oracle.project(x, w.kind, w.raw) for w in weights)
    for epilogue, act in ((p.OUT_SILU, Activation.SILU), (p.OUT_GELU, Activation.GELU)):
        plan = p.Plan(grid=4, rows=4, count=2, seed=seed, lasts=1)
        outs, word = p.project(
            shim, weights, p.source_of(device(x)), plan, epilogue=epilogue, act_entry=40
        )
        assert same(outs[0][:2], oracle.gated_act(gate, up, act))
        assert word == NO_FAULT


def test_scale_and_softcap_behind(shim, seed):
    raw, x, y = data(BlockType.Q6_K, 768, 130)
    weight = p.place(shim, BlockType.Q6_K, raw, 768)
    for factor, cap in ((0.25, 30.0), (0.0, 50.0), (0.125, 0.0)):
        want = y[:1]
        want = oracle.scale(want, factor) if factor else want
        want = oracle.softcap(want, cap) if cap else want
        inverse = float(np.float32(1.0 / cap)) if cap else 0.0
        more = {"epilogue": p.OUT_LOGITS, "scale": factor, "cap": cap, "inverse_cap": inverse}
        outs, word = p.project(
            shim, [weight], p.source_of(device(x[:1])), p.Plan(seed=seed), **more
        )
        assert same(outs[0], want)
        assert word == NO_FAULT


@pytest.mark.parametrize("width", [768, 1024])
def test_the_first_fault_of_the_first_row_wins(shim, width):
    """Entries of a fused launch count like the operators that it stands for."""
    raw, _, _ = data(BlockType.Q4_K, width, 21)
    weight = p.place(shim, BlockType.Q4_K, raw, width)
    x, stream, w, w2 = vectors(width, 4)
    plan = p.Plan(rows=4, count=4, warps=8)
    entries = {"branch_entry": 3, "sum_entry": 4, "norm_entry": 5}
    summed = p.poisoned(x.shape, np.float32)
    common = {"other": stream, "weight": w2, "eps": 1e-5, "sum": summed, **entries}
    huge = x.copy()
    huge[2, 5] = 3e38
    source = p.source_of(device(huge), p.RESIDUAL, **common)
    assert p.project(shim, [weight], source, plan)[1] == 5 << 32 | 2
    normed = {"branch_norm": 1, "branch_weight": w, "branch_eps": 1e-8}
    source = p.source_of(device(huge), p.RESIDUAL, **common, **normed)
    assert p.project(shim, [weight], source, plan)[1] == 3 << 32 | 2
    huge[2, 5], stream[1, 9], huge[1, 9] = 0, 3e38, 3e38
    source = p.source_of(device(huge), p.RESIDUAL, **common)
    assert p.project(shim, [weight], source, plan)[1] == 4 << 32 | 1
    source = p.source_of(device(huge), p.RESIDUAL, **common)
    few = p.Plan(rows=4, count=1, warps=8)
    assert p.project(shim, [weight], source, few)[1] == NO_FAULT
    much = device(
        np.full(width, 2.0**127, np.float32)
    )  # times this, a finite row leaves the numbers
    for kind, more, entry in (
        (p.RESIDUAL, {**common, **normed, "branch_weight": much}, 3),
        (p.RESIDUAL, {**common, "weight": much}, 5),
        (p.NORM, {"weight": much, "eps": 1e-5, "norm_entry": 5}, 5),
    ):
        source = p.source_of(vectors(width, 4)[0], kind, **more)
        assert p.project(shim, [weight], source, plan)[1] == entry << 32


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_faults_of_projections_and_what_follows(shim):
    for kind in (BlockType.Q4_K, BlockType.Q4_1, BlockType.BF16):
        width = SIZES[kind.elements][1][0]
        raw, x, _ = data(kind, width, 21)
        weight = p.place(shim, kind, raw, width)
        huge = (x[7:9] * np.float32(2.0**60)).astype(np.float32)
        big = huge * np.float32(2.0**64)
        rows = device(np.stack([x[7], big[1]]))
        with pytest.raises(ArithmeticFault):
            oracle.project(rows, kind, raw)
        plan = p.Plan(rows=4, count=2)
        assert p.project(shim, [weight], p.source_of(rows), plan)[1] == 20 << 32 | 1
        ok = device(huge)
        gate = oracle.project(ok, kind, raw)
        with pytest.raises(ArithmeticFault):
            oracle.gated_act(gate * np.float32(16), gate * np.float32(16), Activation.SILU)
        more = {"epilogue": p.OUT_SILU, "act_entry": 40}
        wide = device(huge * np.float32(16))
        oracle.project(wide, kind, raw)
        assert p.project(shim, [weight] * 2, p.source_of(wide), plan, **more)[1] == 40 << 32
        more = {"epilogue": p.OUT_LOGITS, "scale": 2.0**70, "scale_entry": 50, "cap_entry": 51}
        assert p.project(shim, [weight], p.source_of(ok), plan, **more)[1] == 50 << 32


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_weights_that_are_not_finite_are_named(shim, kind):
    width, out = SIZES[kind.elements][1]
    raw = data(kind, width, out)[0].copy()
    half = {BlockType.Q6_K: 208 + 210, BlockType.F32: 6, BlockType.Q4_1: 22}.get(kind, 0)
    raw[17, half : half + 2] = (0x80, 0x7F) if kind is not BlockType.Q6_K else (0, 0x7C)
    weight = p.place(shim, kind, raw, width)
    assert int(weight.word[0]) == 7 << 32 | 17
