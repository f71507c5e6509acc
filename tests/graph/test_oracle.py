"""Operators against rational arithmetic and the published digests."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from muser.errors import ArithmeticFault, ModelError
from muser.formats import FLOATS, READABLE, BlockType, quantise, unpack
from muser.graph import Activation, Pairing, conformance, oracle
from muser.graph.ops import RopeSpec
from muser.graph.rope import angle_factor, rope_table
from tests.graph import exact_reference as exact

QUANTISED = sorted(READABLE.difference(FLOATS), key=lambda kind: kind.id)


@pytest.mark.parametrize("vector", conformance.ATTENTION, ids=lambda v: v.digest)
def test_attention_digests(vector):
    keys = oracle.snap_kv(vector.keys(), 1)
    values = oracle.snap_kv(vector.values(), 1)
    visible = np.array([[vector.first, vector.last]])
    out = oracle.attention(vector.query(), keys, values, visible, vector.dim**-0.5)
    assert conformance.digest(out) == vector.digest


@pytest.mark.parametrize("vector", conformance.NORMS, ids=lambda v: str(v.count))
def test_norm_digests(vector):
    out = oracle.rms_norm(vector.row()[None], vector.weight(), conformance.NORM_EPS)
    assert conformance.digest(out) == vector.digest


def weight_terms(weight, row: int, b: int, q: list[int]) -> Fraction:
    """t_b of one output with rational numbers."""
    codes = weight.codes[row, b].astype(int).tolist()
    d = Fraction(float(weight.d[row, b]))
    if weight.scales is not None:
        scales = weight.scales[row, b].astype(int).tolist()
        step = len(codes) // len(scales)
        codes = [code * scales[i // step] for i, code in enumerate(codes)]
    dot = exact.round_f32(Fraction(sum(a * b for a, b in zip(codes, q, strict=True))))
    if weight.mins is not None:
        mins = weight.mins[row, b].astype(int).tolist()
        step = len(q) // len(mins)
        low = exact.round_f32(Fraction(sum(mins[i // step] * code for i, code in enumerate(q))))
        dmin = Fraction(float(weight.dmin[row, b]))
        return exact.fma(d, dot, -exact.round_f32(dmin * low))
    if weight.offset is not None:
        offset = Fraction(float(weight.offset[row, b]))
        return exact.fma(d, dot, exact.round_f32(offset * sum(q)))
    return exact.round_f32(d * dot)


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda k: k.name)
def test_projection_equals_rational_arithmetic(kind):
    rng = np.random.default_rng(kind.id)
    x = rng.standard_normal((2, 512)).astype(np.float32)
    raw = quantise(kind, rng.standard_normal((3, 512)).astype(np.float32))
    weight = unpack(kind, raw)
    out = oracle.project(x, kind, raw)
    block = kind.elements
    for row in range(2):
        for column in range(3):
            total = Fraction(0)
            for b in range(512 // block):
                q, s = exact.quantise(exact.fractions(x[row, b * block : (b + 1) * block]))
                total = exact.fma(s, weight_terms(weight, column, b, q), total)
            assert Fraction(float(out[row, column])) == exact.z(total)


@pytest.mark.parametrize("width", [128, 200, 640])
def test_float_projection_equals_rational_arithmetic(width):
    rng = np.random.default_rng(width)
    x, w = (rng.standard_normal((3, width)).astype(np.float32) for _ in range(2))
    w[0, :3] = 2.0**-50  # below the smallest value: counts as zero
    out = oracle.project(x, BlockType.F32, w.view(np.uint8).reshape(3, -1))
    cleaned = np.where(np.abs(w) < 2.0**-40, 0, w)
    for row in range(3):
        for column in range(3):
            total = Fraction(0)
            for start in range(0, width, 128):
                n, e = exact.grid(exact.fractions(x[row, start : start + 128]), 13, -60)
                m, f = exact.grid(exact.fractions(cleaned[column, start : start + 128]), 11, -60)
                dot = exact.round_f32(Fraction(sum(a * b for a, b in zip(n, m, strict=True))))
                total = exact.fma(dot, Fraction(2) ** (e + f), total)
            assert Fraction(float(out[row, column])) == exact.z(total)


@pytest.mark.parametrize(("dim", "first", "last"), [(8, 0, 1), (8, 0, 130), (16, 100, 300)])
def test_attention_equals_rational_arithmetic(dim, first, last):
    rng = np.random.default_rng(dim + last)
    q = (3 * rng.standard_normal((1, 2, dim))).astype(np.float32)
    k = (4 * rng.standard_normal((last, dim))).astype(np.float32)
    v = (rng.standard_normal((last, dim)) * 2.0 ** rng.integers(-9, 4, (last, 1))).astype("f4")
    keys, values = oracle.snap_kv(k, 1), oracle.snap_kv(v, 1)
    out = oracle.attention(q, keys, values, np.array([[first, last]]), dim**-0.5)
    stored = [[exact.fractions(row) for row in plane[:, 0]] for plane in (keys, values)]
    for head in range(2):
        expected = exact.attention(exact.fractions(q[0, head]), *stored, first, last, dim**-0.5)
        assert exact.fractions(out[0, head * dim : (head + 1) * dim]) == expected


def test_attention_over_a_cliff_equals_rational_arithmetic():
    """Tiles more than 100 binades apart, up and down: shifts are cut and z acts."""
    vector = conformance.AttentionVector(16, 400, 40, 400, "", cliff=8)
    keys, values = oracle.snap_kv(vector.keys(), 1), oracle.snap_kv(vector.values(), 1)
    visible = np.array([[vector.first, vector.last]])
    out = oracle.attention(vector.query(), keys, values, visible, 0.25)
    stored = [[exact.fractions(row) for row in plane[:, 0]] for plane in (keys, values)]
    for head in range(4):
        query = exact.fractions(vector.query()[0, head])
        expected = exact.attention(query, *stored, vector.first, vector.last, 0.25)
        assert exact.fractions(out[0, head * 16 : head * 16 + 16]) == expected


def test_attention_of_a_batch_equals_each_row_alone():
    rng = np.random.default_rng(5)
    q = rng.standard_normal((6, 4, 16)).astype(np.float32)
    keys, values = (oracle.snap_kv(rng.standard_normal((400, 32)).astype("f4"), 2) for _ in "kv")
    visible = np.array([[0, 5], [100, 131], [128, 256], [127, 129], [3, 400], [399, 400]])
    together = oracle.attention(q, keys, values, visible, 0.25)
    for row in range(6):
        alone = oracle.attention(q[row : row + 1], keys, values, visible[row : row + 1], 0.25)
        assert alone.tobytes() == together[row].tobytes()


def test_attention_skips_what_it_may_not_see():
    rng = np.random.default_rng(6)
    q = rng.standard_normal((1, 1, 16)).astype(np.float32)
    keys, values = (oracle.snap_kv(rng.standard_normal((300, 16)).astype("f4"), 1) for _ in "kv")
    before = oracle.attention(q, keys, values, np.array([[140, 250]]), 0.25)
    keys[:140], values[250:] = 60000, 60000
    assert oracle.attention(q, keys, values, np.array([[140, 250]]), 0.25).tobytes() == (
        before.tobytes()
    )


def test_rope_table_digest_and_factor():
    table = rope_table(RopeSpec(128, 500000.0, Pairing.INTERLEAVED), 4)
    digest = 0xCBF29CE484222325
    for byte in table.astype("<f4").tobytes():
        digest = ((digest ^ byte) * 0x100000001B3) % (1 << 64)
    assert digest == 0xEC36949CC4F7B428
    assert angle_factor(500000.0, 128).view(np.uint32) == 0x3F508AC1


def test_rope_factors_divide_the_angle_and_not_the_recurrence():
    spec = RopeSpec(8, 10000.0, Pairing.INTERLEAVED)
    plain = rope_table(spec, 50)
    halved = rope_table(spec, 50, np.array([1, 2, 1, 1], np.float32))
    assert (halved[:, [0, 2, 3]] == plain[:, [0, 2, 3]]).all()
    assert (halved[1:, 1] != plain[1:, 1]).any()


def test_linear_scaling_multiplies_the_angle_and_not_the_recurrence():
    spec = RopeSpec(8, 10000.0, Pairing.HALF_SPLIT)
    plain, scaled = rope_table(spec, 48), rope_table(replace(spec, scale=0.125), 48)
    assert (scaled[::8] == plain[:6]).all()
    assert (scaled[1:, 0] != plain[1:, 0]).any()
    for scale in (0.0, 1.5, np.nan):
        with pytest.raises(ModelError, match="leave the integer phase"):
            rope_table(replace(spec, scale=scale), 4)


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0**-9, np.nan])
def test_rope_refuses_angles_beyond_the_phase(factor):
    spec = RopeSpec(8, 10000.0, Pairing.INTERLEAVED, "rope_freqs.weight")
    with pytest.raises(ModelError, match=r"rope_freqs\.weight of the rotation"):
        rope_table(spec, 4, np.array([1, 1, factor, 1], np.float32))
    with pytest.raises(ModelError, match=r"The base 0\.5"):
        rope_table(RopeSpec(8, 0.5, Pairing.INTERLEAVED), 4)
    rope_table(spec, 4, np.full(4, 2.0**-8, np.float32))


def test_rope_by_hand():
    """Head of 4, base 10,000, position 2: the toy check of the model's specification."""
    table = rope_table(RopeSpec(4, 10000.0, Pairing.INTERLEAVED), 3)[2:]
    x = np.array([[1, 0, 1, 0]], np.float32)
    out = oracle.rope(x, table, 1, Pairing.INTERLEAVED)
    assert np.abs(out - np.array([[-0.41615, 0.9093, 0.9998, 0.02]])).max() < 1e-4
    split = oracle.rope(x[:, [0, 2, 1, 3]], table, 1, Pairing.HALF_SPLIT)
    assert split[:, [0, 2, 1, 3]].tobytes() == out.tobytes()


def test_rope_passes_what_is_not_rotated():
    table = rope_table(RopeSpec(4, 10000.0, Pairing.HALF_SPLIT), 3)[1:2]
    x = np.arange(16, dtype=np.float32)[None]
    out = oracle.rope(x, table, 2, Pairing.HALF_SPLIT).reshape(2, 8)
    assert (out[:, 4:] == x.reshape(2, 8)[:, 4:]).all()
    assert (out[:, :4] != x.reshape(2, 8)[:, :4]).any()


def test_norm_by_hand():
    x = np.array([[3, 4, 0, 0]], np.float32)
    out = oracle.rms_norm(x, np.array([2, 0.5, 1, 1], np.float32), 1e-5)
    assert np.abs(out - np.array([[2.4, 0.8, 0, 0]])).max() < 1e-5
    heads = oracle.head_norm(np.tile(x, (1, 3)), None, 3, 1e-5).reshape(3, 4)
    assert (heads == oracle.rms_norm(x, None, 1e-5)).all()


def test_capped_logits_by_hand():
    out = oracle.softcap(np.array([[12, 6, 40, 20]], np.float32), 20.0)
    assert np.abs(out - np.array([[10.741, 5.826, 19.281, 15.232]])).max() < 1e-3


def test_capped_logits_equal_rational_arithmetic():
    x = (np.random.default_rng(8).standard_normal((1, 500)) * 25).astype(np.float32)
    expected = [exact.softcap(value, 30) for value in exact.fractions(x)]
    assert exact.fractions(oracle.softcap(x, 30.0)) == expected


def test_gated_activations():
    gate, up = np.array([[0, 1, -100]], np.float32), np.array([[5, 2, 3]], np.float32)
    silu = oracle.gated_act(gate, up, Activation.SILU)
    assert silu[0, 0] == 0
    assert silu[0, 2] == 0
    assert abs(silu[0, 1] - 1.4621172) < 1e-6
    assert oracle.sigmoid_gate(up, gate)[0, 0] == 2.5


@pytest.mark.parametrize(
    "act",
    [
        lambda big: oracle.add(big, big),
        lambda big: oracle.scale(big, 3.0),
        lambda big: oracle.rms_norm(big, None, 1e-5),
        lambda big: oracle.snap_kv(big, 1),
        lambda big: oracle.gated_act(big, big, Activation.SILU),
        lambda big: oracle.project(big, BlockType.F32, big.view(np.uint8)),
    ],
    ids=["add", "scale", "norm", "snap", "gate", "project"],
)
def test_leaving_the_finite_numbers_is_a_fault(act):
    big = np.full((1, 128), 3e38, np.float32)
    with np.errstate(all="ignore"), pytest.raises(ArithmeticFault):
        act(big)


def test_argmax_takes_the_lower_id():
    logits = np.zeros((1, 1024), np.float32)
    logits[0, [256, 512]] = 1
    assert oracle.argmax(logits).tolist() == [256]
