"""Primitives against the table of docs/arithmetic.md and against rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from muser.graph import arithmetic, conformance
from muser.graph.arithmetic import f32
from tests.graph import exact_reference as exact


def hexes(*texts: str) -> np.ndarray:
    return np.array([f32(text) for text in texts], np.float32)


def assert_same_words(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == expected.tobytes()


def test_fma_table():
    table = conformance.FMA
    a, b, c, out = (conformance.column(table, i) for i in range(4))
    assert_same_words(arithmetic.fma(a, b, c), out)
    naive = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (naive != out).all(), "these triples must break the naive form"


def triples(family: str, rng: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    """Directed triples: random ones hardly ever meet a double rounding."""
    odd = rng.integers(1 << 11, 1 << 12, (2, count)) | 1
    a, b = (odd / 2.0**12).astype(np.float32)
    if family == "tiny addend":
        c = (rng.choice([-1, 1], count) * 2.0 ** rng.integers(-80, -40, count)).astype(np.float32)
    elif family == "half ulp":
        a = (rng.integers(1 << 23, 1 << 24, count) * 2.0**-36).astype(np.float32)
        b = np.ldexp(np.float32(1), rng.integers(-14, -11, count)).astype(np.float32)
        c = (rng.integers(1 << 23, 1 << 24, count) * 2.0**-23).astype(np.float32)
    elif family == "subnormal":
        a = np.ldexp(a, -70).astype(np.float32)
        b = np.ldexp(b, -70).astype(np.float32)
        c = (rng.integers(-50, 50, count) * 2.0**-149).astype(np.float32)
    else:
        a, b, c = rng.standard_normal((3, count)).astype(np.float32)
    return a, b, c


@pytest.mark.parametrize("family", ["tiny addend", "half ulp", "subnormal", "normal"])
def test_fma_equals_rational_arithmetic(family):
    a, b, c = triples(family, np.random.default_rng(7), 4000)
    expected = [
        float(exact.fma(*three))
        for three in zip(exact.fractions(a), exact.fractions(b), exact.fractions(c), strict=True)
    ]
    actual = arithmetic.fma(a, b, c)
    assert_same_words(actual + np.float32(0), np.array(expected, np.float32))


def test_rne_fma_rounds_the_unrounded_product():
    x = np.array([f32(text) for text, _ in conformance.RNE], np.float32)
    factor = f32(conformance.RNE_FACTOR)
    assert arithmetic.rne_fma(factor, x).tolist() == [code for _, code in conformance.RNE]
    assert np.rint(factor * x).tolist() != [code for _, code in conformance.RNE]


@pytest.mark.parametrize(
    ("table", "dtype"), [(conformance.INT32_TO_F32, np.int32), (conformance.INT64_TO_F32, np.int64)]
)
def test_integers_round_to_nearest_even(table, dtype):
    integers = np.array([value for value, _ in table], dtype)
    assert_same_words(arithmetic.to_f32(integers), hexes(*(text for _, text in table)))


def test_halves_keep_subnormals():
    x = hexes(*(text for text, _ in conformance.F32_TO_F16))
    words = x.astype(np.float16).view(np.uint16)
    assert words.tolist() == [word for _, word in conformance.F32_TO_F16]


def test_division_and_inverse_root():
    a, b, out = (conformance.column(conformance.DIVIDE, i) for i in range(3))
    assert_same_words(a / b, out)
    x, root = (conformance.column(conformance.INVERSE_ROOT, i) for i in range(2))
    assert_same_words(np.float32(1) / np.sqrt(x), root)


def test_grid_table():
    x = hexes(*(text for text, _ in conformance.GRID))
    n, e = arithmetic.grid_rows(x, 11, -24)
    assert n.tolist() == [code for _, code in conformance.GRID]
    assert e == conformance.GRID_STEP


def test_z_removes_small_values_and_minus_zero():
    x = hexes("0x1p-40", "0x1.fffffep-41", "-0x1p-41", "-0x0p0", "-0x1p-40")
    assert_same_words(arithmetic.z(x), hexes("0x1p-40", "0x0p0", "0x0p0", "0x0p0", "-0x1p-40"))


def test_is_finite_reads_bits():
    x = np.array([np.inf, -np.inf, np.nan, 3.4e38, 0], np.float32)
    assert arithmetic.is_finite(x).tolist() == [False, False, False, True, True]


def test_quantise_rows_by_hand():
    x = np.zeros((1, 64), np.float32)
    x[0, 32:36] = [1.0, -0.5, 0.25, 127.0]
    codes, scale = arithmetic.quantise_rows(x, 32)
    assert codes[0, 0].tolist() == [0] * 32
    assert scale[0].tolist() == [0.0, 1.0]
    assert codes[0, 1, :5].tolist() == [1, 0, 0, 127, 0]  # −0.5 and 0.25 tie or fall to 0


@pytest.mark.parametrize("block", [32, 256])
def test_quantise_rows_equals_rational_arithmetic(block):
    rng = np.random.default_rng(block)
    x = (rng.standard_normal((5, 2 * block)) * 2.0 ** rng.integers(-30, 30, (5, 1))).astype("f4")
    codes, scale = arithmetic.quantise_rows(x, block)
    for row in range(5):
        for b in range(2):
            part = exact.fractions(x[row, b * block : (b + 1) * block])
            q, s = exact.quantise(part)
            assert codes[row, b].tolist() == q
            assert Fraction(float(scale[row, b])) == s


@pytest.mark.parametrize(("precision", "lowest"), [(11, -24), (13, -60), (14, -60)])
def test_grid_rows_equal_rational_arithmetic(precision, lowest):
    rng = np.random.default_rng(precision)
    x = (rng.standard_normal((20, 64)) * 2.0 ** rng.integers(-39, 10, (20, 1))).astype("f4")
    x[3] = 0
    n, e = arithmetic.grid_rows(x, precision, lowest)
    for row in range(20):
        codes, step = exact.grid(exact.fractions(x[row]), precision, lowest)
        assert n[row].tolist() == codes
        assert e[row] == step


def test_snapping_twice_changes_nothing():
    x = np.random.default_rng(3).standard_normal((200, 128)).astype(np.float32)
    n, e = arithmetic.grid_rows(x, 11, -24)
    stored = np.ldexp(n.astype(np.float64), e[:, None].astype(np.int32))
    assert (stored.astype(np.float16).astype(np.float64) == stored).all()
    n2, e2 = arithmetic.grid_rows(stored.astype(np.float32), 11, -24)
    assert (n2 == n).all()
    assert (e2 == e).all()


@pytest.mark.parametrize(
    ("table", "function"),
    [
        (conformance.EXP, arithmetic.exp),
        (conformance.EXP2_FRACTION, arithmetic.exp2_fraction),
    ],
    ids=["exp", "exp2_fraction"],
)
def test_function_tables(table, function):
    assert_same_words(function(conformance.column(table, 0)), conformance.column(table, 1))


def test_the_exp2_words_see_an_ulp_in_every_coefficient_but_the_first():
    x = conformance.column(conformance.EXP2_FRACTION, 0)
    expected = conformance.column(conformance.EXP2_FRACTION, 1)
    coefficients = [f32(text) for text in arithmetic.EXP2_COEFFICIENTS]
    for index in range(1, len(coefficients)):
        for towards in (0, 2):
            bent = list(coefficients)
            bent[index] = np.nextafter(bent[index], np.float32(towards))
            total = np.full_like(x, bent[0])
            for coefficient in bent[1:]:
                total = arithmetic.fma(total, x, coefficient)
            assert (total != expected).any(), (index, towards)


@pytest.mark.parametrize("name", ["exp", "sigmoid", "silu", "tanh", "gelu"])
def test_functions_equal_rational_arithmetic(name):
    rng = np.random.default_rng(len(name))
    ends = np.array([0, 80, -80, -80.00001, 81, 44.4, -44.4, 2.0**-40, -1, 1], np.float32)
    x = np.concatenate([ends, rng.uniform(-90, 90, 300), rng.standard_normal(700)]).astype("f4")
    actual, expected = getattr(arithmetic, name)(x), getattr(exact, name)
    assert exact.fractions(actual) == [expected(value) for value in exact.fractions(x)]


def test_exp_is_guarded_and_close():
    x = np.array([-200, -80.5, -80, 0, 1, 80, 88.7, 100, np.float32(3e38)], np.float32)
    y = arithmetic.exp(x)
    assert y[0] == y[1] == 0
    assert y[3] == 1
    assert y[5] == y[6] == y[7] == y[8]
    grid = np.linspace(-79, 79, 5001, dtype=np.float32)
    true = np.exp(grid.astype(np.float64))
    assert (np.abs(arithmetic.exp(grid) / true - 1) < 2.0**-22).all()


def test_sigmoid_tanh_gelu_have_their_limits():
    x = np.array([-300, -1, 0, 1, 300], np.float32)
    assert arithmetic.sigmoid(x).tolist()[::2] == [0.0, 0.5, 1.0]
    assert arithmetic.tanh(x).tolist()[::2] == [-1.0, 0.0, 1.0]
    assert arithmetic.gelu(x).tolist()[::2] == [0.0, 0.0, 300.0]
    wide = np.linspace(-20, 20, 4001)
    for ours, true in (
        (arithmetic.sigmoid, 1 / (1 + np.exp(-wide))),
        (arithmetic.tanh, np.tanh(wide)),
    ):
        assert (np.abs(ours(wide.astype(np.float32)) - true) < 1e-6).all()


def test_lane_sum_order_by_hand():
    """One lane sees x and then a tie-breaking term; halves are added crosswise."""
    x = np.zeros(600, np.float32)
    x[0], x[256], x[512] = 1.0, 2.0**-12, 2.0**-12
    expected = exact.Fraction(0)
    for value in (x[0], x[256], x[512]):
        expected = exact.fma(Fraction(float(value)), Fraction(float(value)), expected)
    assert Fraction(float(arithmetic.lane_sum_of_squares(x))) == expected
    y = np.zeros(256, np.float32)
    y[1], y[129], y[65] = 1.0, 2.0**-12, 2.0**-12
    assert arithmetic.lane_sum_of_squares(y) == np.float32(1 + 2.0**-24 + 0) + np.float32(2.0**-24)


def test_order_keys_put_ties_to_the_lower_id():
    logits = np.array([[1.0, 3.0, 3.0, -5.0, -0.0, 0.0]], np.float32)
    keys = arithmetic.order_keys(logits)[0]
    assert np.argsort(keys)[::-1].tolist() == [1, 2, 0, 5, 4, 3]
