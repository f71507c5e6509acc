"""The host's exp, log and sums, and the integer weights, against decimals and fractions."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muser.engine.sampling import hostmath
from muser.engine.sampling.candidates import Candidates, choose, keys, ordered, reach, weigh
from tests.engine.sampling import reference

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
exponents = st.floats(-720.0, 0.0)


def ulps(value: float, exact: Decimal) -> Decimal:
    return abs(Decimal(value) - exact) / Decimal(math.ulp(value))


@pytest.mark.parametrize(
    ("x", "bits"),
    [
        (0.0, "0x1.0000000000000p+0"),
        (-0.5, "0x1.368b2fc6f960ap-1"),
        (-1.0, "0x1.78b56362cef38p-2"),
        (-10.0, "0x1.7cd79b5647c9ap-15"),
        (-28.0, "0x1.853f01d6d53bap-41"),
        (-700.0, "0x1.14f2b0fb9307fp-1010"),
        (-700.5, "0x0.0p+0"),
    ],
)
def test_exp_gives_these_bits(x: float, bits: str) -> None:
    assert hostmath.exp1(x).hex() == bits


@settings(deadline=None)
@given(st.lists(st.floats(-720.0, 720.0), min_size=1, max_size=50))
def test_exp_is_the_formula_and_within_two_ulps(xs: list[float]) -> None:
    got = hostmath.exp(np.array(xs)).tolist()
    assert got == [reference.exp(max(min(x, 700.0), -701.0)) for x in xs]
    with localcontext(prec=60):
        for x, y in zip(xs, got, strict=True):
            if abs(x) <= 700.0:
                assert ulps(y, Decimal(x).exp()) <= 2


def test_exp_of_a_long_row_is_that_of_its_numbers() -> None:
    xs = -np.arange(40_000) / 1024.0
    assert np.array_equal(hostmath.exp(xs)[::997], [hostmath.exp1(x) for x in xs[::997]])


@settings(deadline=None)
@given(st.floats(2.0**-1000, 2.0**1000))
def test_log_is_the_formula_and_within_two_ulps(x: float) -> None:
    assert hostmath.log(x) == reference.log(x)
    with localcontext(prec=60):
        assert x == 1.0 or ulps(hostmath.log(x), Decimal(x).ln()) <= 2


@pytest.mark.parametrize(
    ("x", "exponent", "result"),
    [(0.0, 0.0, 1.0), (0.0, 2.0, 0.0), (0.3, 1.0, 0.3), (1.0, 7.5, 1.0)],
)
def test_power_at_its_edges(x: float, exponent: float, result: float) -> None:
    assert hostmath.power(x, exponent) == result


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=70))
def test_tree_sum_adds_in_its_order(xs: list[float]) -> None:
    assert hostmath.tree_sum(np.array(xs)) == reference.tree(xs)


@settings(deadline=None)
@given(st.floats(0.0, 1.0), st.integers(1, 2**62))
def test_shares_are_exact(part: float, total: int) -> None:
    product = Fraction(part) * total
    assert hostmath.share_floor(part, total) == math.floor(product)
    assert hostmath.share_ceil(part, total) == math.ceil(product)


@settings(deadline=None)
@given(st.lists(exponents, min_size=1, max_size=40))
def test_weights_are_the_exponentials_next_integers(xs: list[float]) -> None:
    got = weigh(np.array(xs)).tolist()
    assert got == [round(reference.exp(x) * 2**40) for x in xs]
    with localcontext(prec=60):
        for x, weight in zip(xs, got, strict=True):
            exact = Decimal(x).exp() * 2**40
            assert math.floor(exact) <= weight <= math.ceil(exact)


@settings(deadline=None)
@given(st.lists(finite, min_size=2, max_size=30))
def test_ordered_bits_and_keys_order_as_the_numbers_do(values: list[float]) -> None:
    logits = np.array(values, dtype=np.float32)
    by_bits = ordered(logits).tolist()
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            if a != b:
                assert (a < b) == (by_bits[i] < by_bits[j])
    ids = np.arange(len(values), dtype=np.int64)
    ranked = np.argsort(keys(ids, logits))[::-1].tolist()
    assert ranked == sorted(ids.tolist(), key=lambda i: (-by_bits[i], i))


def test_minus_zero_comes_after_zero() -> None:
    assert ordered(np.array([-0.0, 0.0, -1.5], dtype=np.float32)).tolist() == [
        -1,
        0,
        -(0x3FC00000 + 1),
    ]


def candidates(values: list[float]) -> Candidates:
    logits = np.array(values, dtype=np.float32)
    return Candidates(np.arange(logits.size, dtype=np.int64), logits, in_order=False)


# Few values and long rows: ties across every cut.
rows = st.lists(st.integers(-9, 9), min_size=1, max_size=1500).map(lambda r: [x / 2 for x in r])


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(1, 1600))
def test_best_is_the_head_of_the_sorted_row(row: list[float], count: int) -> None:
    best = candidates(row).best(count)
    expected = reference.in_order(list(enumerate(row)))[:count]
    assert list(zip(best.ids.tolist(), best.logits.tolist(), strict=True)) == expected


@settings(max_examples=60, deadline=None)
@given(rows, st.fractions(0, 1))
def test_reach_counts_as_the_sorted_row_does(row: list[float], share: Fraction) -> None:
    given_row = candidates([x * 8 for x in row])
    bar = max(1, math.floor(share * given_row.total))
    head, count = reach(given_row, bar)
    cumulative = np.cumsum(given_row.sort().weights).tolist()
    assert count == 1 + next(i for i, x in enumerate(cumulative) if x >= bar)
    assert head.ids[:count].tolist() == given_row.sort().ids[:count].tolist()


def test_reach_goes_to_the_end_of_a_flat_row() -> None:
    row = candidates([0.0] * 20_000)
    head, count = reach(row, row.total)
    assert (head.size, count) == (20_000, 20_000)
    assert reach(row, 1500 << 40)[1] == 1500


@settings(deadline=None)
@given(rows, st.lists(st.integers(0, 1600), max_size=20, unique=True))
def test_positions_find_the_ids_that_are_there(row: list[float], ids: list[int]) -> None:
    for some in (candidates(row), candidates(row).best(7)):
        where = some.positions(np.array(ids, dtype=np.int64)).tolist()
        there = some.ids.tolist()
        assert where == [there.index(i) if i in there else -1 for i in ids]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=40).filter(any), st.integers(0, 2**64 - 1)
)
def test_choose_is_the_first_cumulative_sum_above_the_bar(weights: list[int], draw: int) -> None:
    assert choose(np.array(weights), draw) == reference.drawn(weights, draw)


def test_choose_at_both_ends_skips_what_weighs_nothing() -> None:
    weights = np.array([0, 3, 0, 5, 0])
    assert choose(weights, 0) == 1
    assert choose(weights, 2**64 - 1) == 3
    assert choose(weights, 3 * 2**61 - 1) == 1
    assert choose(weights, 3 * 2**61) == 3
