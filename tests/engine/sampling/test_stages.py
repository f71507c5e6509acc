"""Each stage by itself: what it keeps, against the plain-Python reference and by hand."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muser.engine.sampling import stages
from muser.engine.sampling.candidates import Candidates
from muser.engine.sampling.draws import Mirostat, Plain
from muser.engine.sampling.history import Dry, Penalties, breaker_tokens
from muser.engine.sampling.parameters import Sampling
from muser.engine.sampling.rng import Mt19937
from tests.engine.sampling import reference

Tokens = list[tuple[int, float]]


def candidates(values: Sequence[float]) -> Candidates:
    logits = np.array(values, dtype=np.float32)
    return Candidates(np.arange(logits.size, dtype=np.int64), logits, in_order=False)


def tokens(some: Candidates) -> Tokens:
    return reference.in_order(list(zip(some.ids.tolist(), some.logits.tolist(), strict=True)))


def keeps(stage: stages.Stage, values: Sequence[float], history: Sequence[int] = ()) -> list[int]:
    return [token for token, _ in tokens(stage(candidates(values), history))]


# Equal logits have equal weights, so that shares of quarters and halves are met exactly.
flat = st.sampled_from([1, 2, 4, 8, 16, 64]).map(lambda n: [0.0] * n)
rough = st.lists(st.integers(-24, 24).map(lambda x: x / 4), min_size=1, max_size=40)
logit_rows = flat | rough
shares = st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 0.875]) | st.floats(0.0, 1.0)
min_keeps = st.integers(0, 6)


@settings(max_examples=200, deadline=None)
@given(logit_rows, shares, min_keeps, st.booleans())
def test_stages_that_thin_out_keep_what_the_reference_keeps(
    values: list[float], p: float, min_keep: int, sort: bool
) -> None:
    s = Sampling(
        top_p=p, min_p=p, typical_p=p, min_keep=min_keep, top_n_sigma=2 * p, top_k=int(8 * p)
    )
    row = candidates(values).sort() if sort else candidates(values)
    given_row = list(zip(row.ids.tolist(), row.logits.tolist(), strict=True))
    pairs: list[tuple[stages.Stage, object]] = [
        (stages.TopP(p, min_keep), reference.top_p),
        (stages.MinP(p, min_keep), reference.min_p),
        (stages.Typical(p, min_keep), reference.typ_p),
        (stages.TopNSigma(2 * p), reference.top_n_sigma),
        (stages.TopK(int(8 * p)), reference.top_k),
    ]
    switched_on = [p < 1, p > 0, p < 1, p > 0, int(8 * p) > 0]
    for (stage, plain), on in zip(pairs, switched_on, strict=True):
        if on:
            expected = plain(given_row, s)  # type: ignore[operator]
            assert tokens(stage(row, ())) == reference.in_order(expected)


@settings(max_examples=100, deadline=None)
@given(logit_rows, shares, shares, min_keeps, st.integers(0, 2**32 - 1))
def test_xtc_keeps_what_the_reference_keeps(
    values: list[float], probability: float, threshold: float, min_keep: int, seed: int
) -> None:
    s = Sampling(
        xtc_probability=probability, xtc_threshold=threshold / 2, min_keep=min_keep, seed=seed
    )
    plain = reference.Reference(s)
    stage = stages.Xtc(probability, threshold / 2, min_keep, Mt19937(seed))
    for _ in range(3 if probability > 0 else 0):
        expected = plain.xtc(list(enumerate(values)))
        assert tokens(stage(candidates(values), ())) == reference.in_order(expected)


@settings(max_examples=100, deadline=None)
@given(logit_rows, st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.floats(0.0, 4.0))
def test_temperatures_are_the_references(
    values: list[float], t: float, width: float, exponent: float
) -> None:
    t, width = round(t, 3), round(width, 3)
    s = Sampling(temperature=t, dynatemp_range=width, dynatemp_exponent=exponent)
    fixed = stages.Temperature(t)(candidates(values), ())
    assert tokens(fixed) == reference.in_order(reference.temperature(list(enumerate(values)), t))
    moving = stages.DynamicTemperature(t, width, exponent)(candidates(values), ())
    expected = reference.dynamic_temperature(list(enumerate(values)), s)
    assert tokens(moving) == reference.in_order(expected)


few_ids = st.lists(st.integers(0, 4), max_size=40) | st.lists(st.integers(0, 1), max_size=40)
heads = st.dictionaries(
    st.integers(0, 4), st.lists(st.lists(st.integers(0, 4), max_size=2).map(tuple)), max_size=2
)


@settings(max_examples=200, deadline=None)
@given(rough, few_ids, heads, st.integers(0, 4), st.integers(-1, 30), st.floats(1.0, 50.0))
def test_dry_lowers_as_the_reference_does(
    values: list[float],
    history: list[int],
    breakers: dict[int, list[tuple[int, ...]]],
    allowed: int,
    last_n: int,
    base: float,
) -> None:
    if last_n == 0:
        return
    s = Sampling(dry_multiplier=0.7, dry_base=base, dry_allowed_length=allowed, dry_last_n=last_n)
    stage = Dry(0.7, base, allowed, last_n, breakers)
    expected = reference.dry(list(enumerate(values)), s, history, breakers)
    assert tokens(stage(candidates(values), history)) == reference.in_order(expected)


@settings(max_examples=100, deadline=None)
@given(rough, few_ids, st.integers(-1, 20), st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2))
def test_penalties_lower_as_the_reference_does(
    values: list[float],
    history: list[int],
    last_n: int,
    repeat: float,
    presence: float,
    frequency: float,
) -> None:
    s = Sampling(
        repeat_last_n=last_n,
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
    stage = Penalties(last_n, repeat, presence, frequency)
    expected = reference.penalties(list(enumerate(values)), s, history)
    assert tokens(stage(candidates(values), history)) == reference.in_order(expected)
    held = stage(candidates(values).best(3), history)
    first = reference.in_order(list(enumerate(values)))[:3]
    assert tokens(held) == reference.in_order(reference.penalties(first, s, history))


def test_top_p_at_exactly_its_share() -> None:
    assert keeps(stages.TopP(0.5, 0), [0, 0, 0, 0]) == [0, 1]
    assert keeps(stages.TopP(0.50001, 0), [0, 0, 0, 0]) == [0, 1, 2]
    third = 1 / 3  # of f64, a little below a third
    assert keeps(stages.TopP(third, 0), [0, 0, 0]) == [0]
    assert keeps(stages.TopP(math.nextafter(third, 1), 0), [0, 0, 0]) == [0, 1]
    assert keeps(stages.TopP(0.0, 0), [0, 1, 0, 0]) == [1]
    assert keeps(stages.TopP(0.0, 3), [0, 1, 0, 0]) == [1, 0, 2]


def test_typical_goes_on_at_exactly_its_share() -> None:
    assert keeps(stages.Typical(0.5, 0), [0, 0, 0, 0]) == [0, 1, 2]
    # p is 0.405 and four times 0.149; the mean distance, 0.595, is nearer to the four.
    assert keeps(stages.Typical(0.2, 0), [2.0, 1.0, 1.0, 1.0, 1.0]) == [1, 2]


def test_min_p_and_its_least_number() -> None:
    # ln 2 rounded up to f32 lies a little more than a factor of two below.
    assert keeps(stages.MinP(0.5, 0), [0.0, -0.6931471, -0.6931473]) == [0, 1]
    assert keeps(stages.MinP(1.0, 0), [0, 1, 1]) == [1, 2]
    assert keeps(stages.MinP(1.0, 3), [0, 1, 1]) == [1, 2, 0]


def test_top_n_sigma_at_exactly_its_bound() -> None:
    # Mean 0, σ = 1: one σ below the greatest is 0, two is −1.
    assert keeps(stages.TopNSigma(2.0), [1, -1, 1, -1]) == [0, 2, 1, 3]
    assert keeps(stages.TopNSigma(1.999), [1, -1, 1, -1]) == [0, 2]
    assert keeps(stages.TopNSigma(1.0), [5.0]) == [0]


def test_a_temperature_that_makes_logits_equal_puts_the_lower_id_first() -> None:
    low, high = float.fromhex("0x1.fd70a6p+0"), float.fromhex("0x1.fd70a8p+0")
    divided = stages.Temperature(1.9)(candidates([low, high]).sort(), ())
    assert divided.logits[0] == divided.logits[1]
    assert divided.ids.tolist() == [0, 1]


def test_xtc_keeps_the_last_likely_token() -> None:
    def always(threshold: float, min_keep: int) -> stages.Xtc:
        return stages.Xtc(1.0, threshold, min_keep, Mt19937(1))

    assert keeps(always(0.25, 0), [0, 0, 0, 0]) == [3]
    assert keeps(always(0.26, 0), [0, 0, 0, 0]) == [0, 1, 2, 3]
    assert keeps(always(0.25, 2), [0, 0, 0, 0]) == [0, 1, 2, 3]
    assert keeps(always(0.1, 0), [3, 2, 1, -9]) == [1, 2, 3]


def test_xtc_acts_on_a_word_of_at_most_its_probability() -> None:
    word = 1608637542  # the first of seed 42
    assert keeps(stages.Xtc(word / 2**32, 0.1, 0, Mt19937(42)), [1, 1]) == [1]
    assert keeps(stages.Xtc((word - 1) / 2**32, 0.1, 0, Mt19937(42)), [1, 1]) == [0, 1]


def test_dry_counts_what_came_before_a_repetition() -> None:
    # "1 2 3 4 … 1 2 3": three tokens repeat, so 4 pays base^(3 − 2).
    stage = Dry(1.0, 2.0, 2, -1, {})
    lowered = stage(candidates([0.0] * 6), [1, 2, 3, 4, 5, 1, 2, 3])
    assert lowered.logits.tolist() == [0, 0, 0, 0, -2.0, 0]


def test_dry_never_reaches_over_a_breaker() -> None:
    history = [1, 2, 3, 4, 5, 1, 2, 3]

    def lowered(breakers: dict[int, list[tuple[int, ...]]]) -> list[float]:
        return Dry(1.0, 2.0, 2, -1, breakers)(candidates([0.0] * 6), history).logits.tolist()

    assert lowered({1: [()]}) == [0, 0, 0, 0, -1.0, 0]
    assert lowered({2: [()]}) == [0] * 6
    assert lowered({1: [(2,)]}) == [0] * 6
    assert lowered({1: [(), (2,)]}) == [0] * 6
    assert lowered({5: [(4,)]}) == [0, 0, 0, 0, -2.0, 0]


def test_a_draw_at_a_boundary_belongs_to_the_next_token() -> None:
    quarter = 2**62
    for token in range(4):
        for draw in (token * quarter, (token + 1) * quarter - 1):
            assert Plain()(candidates([0, 0, 0, 0]), draw) == token


def test_mirostat_2_keeps_a_token_of_exactly_its_limit() -> None:
    # Four equal tokens have two bits of surprise, and the limit starts at 2·tau.
    assert Mirostat(2, 1.0, 0.1)(candidates([0, 0, 0, 0]), 2**64 - 1) == 3
    assert Mirostat(2, 0.99, 0.1)(candidates([0, 0, 0, 0]), 2**64 - 1) == 0


def test_mirostat_moves_its_limit_by_the_surprise_after_truncation() -> None:
    ending = Mirostat(2, 1.0, 0.5)
    ending(candidates([0, 0, 0, 0]), 0)
    assert ending.state == (2.0 - 0.5 * (2.0 - 1.0),)
    ending(candidates([0, 0, 0, 0]), 0)
    assert ending.state == (1.5 - 0.5 * (0.0 - 1.0),)


@pytest.mark.parametrize("base", [1.75, 3.0e38])
def test_dry_stays_finite(base: float) -> None:
    stage = Dry(3.0e38, base, 0, -1, {})
    lowered = stage(candidates([0.0, 0.0]), [0] * 3000)
    assert lowered.logits.tolist() == [-(2.0**120), 0.0]


def test_breakers_are_heads_with_the_tails_that_complete_them() -> None:
    pieces = [b"a", b"\n", b"x:y", b"<", b"a<e", b"nd>", "ü".encode(), b"\xc3"]
    encoded = {"end>": [20, 5], "nd>": [5]}
    found = breaker_tokens(("\n", ":", "<end>", "ü"), pieces, lambda text: encoded[text])
    assert found == {1: [()], 2: [()], 3: [(20, 5)], 4: [(5,)], 6: [()]}
