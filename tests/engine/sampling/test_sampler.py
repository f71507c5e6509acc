"""`Sampler` against the plain-Python reference, token by token, and against counts."""

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muser.engine.sampling.parameters import STAGES, Sampling
from muser.engine.sampling.sampler import Sampler
from muser.errors import ArithmeticFault, UsageError
from tests.engine.sampling.reference import Reference

F32 = npt.NDArray[np.float32]


def row(*values: float) -> F32:
    return np.array(values, dtype=np.float32)


shares = st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5, 0.8, 0.95, 1.0]) | st.floats(0.0, 1.0)
settings_of = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**32 - 1), "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.5])},
    optional={
        "top_k": st.integers(-1, 30),
        "top_p": shares,
        "min_p": shares,
        "typical_p": shares,
        "top_n_sigma": st.sampled_from([-1.0, 0.5, 1.0, 2.0]),
        "repeat_penalty": st.floats(0.5, 2.0),
        "presence_penalty": st.floats(-2.0, 2.0),
        "frequency_penalty": st.floats(-2.0, 2.0),
        "repeat_last_n": st.integers(-1, 12),
        "dry_multiplier": st.sampled_from([0.0, 0.8, 3.0]),
        "dry_base": st.floats(1.0, 3.0),
        "dry_allowed_length": st.integers(0, 3),
        "dry_last_n": st.integers(-1, 20),
        "xtc_probability": st.sampled_from([0.0, 0.5, 1.0]),
        "xtc_threshold": st.sampled_from([0.0, 0.05, 0.1, 0.5, 0.6]),
        "dynatemp_range": st.sampled_from([0.0, 0.5, 2.0]),
        "dynatemp_exponent": st.sampled_from([0.0, 0.5, 1.0, 1.7]),
        "min_keep": st.integers(0, 5),
        "order": st.permutations(STAGES).flatmap(
            lambda names: st.integers(0, 9).map(lambda n: tuple(names[:n]))
        ),
    },
)
endings = st.sampled_from(
    [
        {},
        {"mirostat": 1, "mirostat_tau": 2.0},
        {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5},
        {"adaptive_p_target": 0.0},
        {"adaptive_p_target": 0.4, "adaptive_p_decay": 0.5},
    ]
)
# Quarters, so that logits tie, and any f32, so that they do not.
logit = st.integers(-40, 40).map(lambda x: x / 4) | st.floats(-30, 30, width=32).map(
    lambda x: x + 0.0
)
logit_rows = st.lists(st.lists(logit, min_size=24, max_size=24), min_size=1, max_size=6)
breakers_of = st.dictionaries(
    st.integers(0, 5), st.lists(st.lists(st.integers(0, 5), max_size=2).map(tuple)), max_size=1
)


@settings(max_examples=300, deadline=None)
@given(settings_of, endings, logit_rows, st.lists(st.integers(0, 5), max_size=30), breakers_of)
def test_every_token_is_the_references(
    chosen: dict[str, object],
    ending: dict[str, object],
    rows: list[list[float]],
    history: list[int],
    breakers: dict[int, list[tuple[int, ...]]],
) -> None:
    sampling = Sampling(**(chosen | ending))  # type: ignore[arg-type]
    ours, theirs = Sampler(sampling, breakers=breakers), Reference(sampling, breakers)
    for values in rows:
        token = ours.pick(row(*values), history)
        assert token == theirs.pick(row(*values).tolist(), history)
        history.append(token)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"top_k": 0},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"top_k": 0, "typical_p": 0.5},
        {"top_n_sigma": 1.5, "xtc_probability": 0.7, "min_p": 0.0},
        {"mirostat": 1},
        {"mirostat": 2},
        {"repeat_penalty": 1.3, "dry_multiplier": 1.0, "dry_breakers": ()},
    ],
    ids=str,
)
def test_long_rows_are_chosen_from_as_the_reference_does(change: dict[str, object]) -> None:
    sampling = Sampling(**({"temperature": 0.9, "seed": 5} | change))  # type: ignore[arg-type]
    ours, theirs = Sampler(sampling), Reference(sampling)
    # Integer noise of our own: the same on every machine and NumPy.
    words = np.random.RandomState(1).randint(0, 2**16, size=(3, 3000), dtype=np.uint32)
    history = [1, 2, 3, 1, 2, 3, 1, 2]
    for word in words:
        logits = (word.astype(np.float32) - 32768) / np.float32(4096)
        token = ours.pick(logits, history)
        assert token == theirs.pick(logits.tolist(), history)
        history.append(token)


def test_greedy_takes_the_lower_id_of_a_tie_and_draws_nothing() -> None:
    sampler = Sampler(Sampling(seed=1))
    before = sampler.snapshot()
    assert sampler.pick(row(1, 3, 2, 3), []) == 1
    assert sampler.snapshot() == before


def test_greedy_obeys_penalties_bias_and_dry() -> None:
    logits = row(1, 3, 2.5, 0)
    assert Sampler(Sampling(repeat_penalty=2.0)).pick(logits, [1]) == 2
    assert Sampler(Sampling(presence_penalty=1.0)).pick(logits, [1]) == 2
    assert Sampler(Sampling(frequency_penalty=0.3)).pick(logits, [1]) == 1
    assert Sampler(Sampling(frequency_penalty=0.3)).pick(logits, [1, 1]) == 2
    assert Sampler(Sampling(frequency_penalty=0.3, repeat_last_n=1)).pick(logits, [1, 1]) == 1
    assert Sampler(Sampling(logit_bias={3: 4.0})).pick(logits, []) == 3
    assert Sampler(Sampling(logit_bias={1: -math.inf})).pick(logits, []) == 2
    dry = Sampling(dry_multiplier=0.8, dry_breakers=())
    assert Sampler(dry).pick(logits, [0, 3, 1, 0, 3]) == 2
    assert Sampler(dry).pick(logits, [0, 1, 0]) == 1


def test_stop_tokens_are_banned_only_when_asked() -> None:
    logits = row(1, 3, 2)
    assert Sampler(Sampling(), stop_ids={1, 9}).pick(logits, []) == 1
    assert Sampler(Sampling(ignore_eos=True), stop_ids={1, 9}).pick(logits, []) == 2


def test_one_draw_a_token_whatever_is_left_to_choose_from() -> None:
    ends = ({}, {"mirostat": 1}, {"mirostat": 2}, {"adaptive_p_target": 0.5})
    for ending in ends:
        sampler = Sampler(Sampling(temperature=1.0, top_k=1, seed=42, **ending))  # type: ignore[arg-type]
        sampler.pick(row(1, 2, 3), [])
        assert sampler.snapshot().draws.index == 2
    assert Sampler(Sampling(mirostat=2)).pick(row(1, 2, 3), []) == 2


def test_the_first_draws_of_seed_42_choose_by_hand() -> None:
    # Four equal weights: the quarter in which 0.7965, 0.1834 and 0.7797 fall.
    sampler = Sampler(Sampling(temperature=1.0, top_p=1.0, seed=42))
    assert [sampler.pick(row(0, 0, 0, 0), []) for _ in range(3)] == [3, 0, 3]


def test_a_seed_replays_and_a_missing_one_is_reported() -> None:
    logits = (np.arange(64, dtype=np.float32) * 7 % 13) / np.float32(4)
    for seed in (None, -1, 0, 2**32 - 1):
        first = Sampler(Sampling(temperature=1.5, seed=seed))
        ids = [first.pick(logits, []) for _ in range(20)]
        again = Sampler(Sampling(temperature=1.5, seed=first.seed))
        assert [again.pick(logits, []) for _ in range(20)] == ids
    assert Sampler(Sampling(seed=0)).seed == 0
    assert len({Sampler(Sampling()).seed for _ in range(4)}) > 1


@pytest.mark.parametrize(
    "change", [{}, {"xtc_probability": 0.5}, {"mirostat": 2}, {"adaptive_p_target": 0.3}], ids=str
)
def test_a_restored_sampler_goes_on_as_the_first_did(change: dict[str, object]) -> None:
    sampling = Sampling(temperature=1.2, seed=9, top_p=1.0, min_p=0.0, **change)  # type: ignore[arg-type]
    logits = (np.arange(50, dtype=np.float32) * 11 % 17) / np.float32(3)
    sampler = Sampler(sampling)
    for _ in range(5):
        sampler.pick(logits, [])
    state = sampler.snapshot()
    ids = [sampler.pick(logits, []) for _ in range(20)]
    sampler.restore(state)
    assert [sampler.pick(logits, []) for _ in range(20)] == ids
    other = Sampler(sampling)
    other.restore(state)
    assert [other.pick(logits, []) for _ in range(20)] == ids


def test_the_row_that_was_given_is_left_as_it_was() -> None:
    logits = row(1, 2, 3, 4)
    logits.flags.writeable = False
    sampling = Sampling(
        temperature=0.7, repeat_penalty=1.5, logit_bias={1: 2.0, 2: -math.inf}, seed=1
    )
    Sampler(sampling).pick(logits, [0, 1])
    assert logits.tolist() == [1, 2, 3, 4]


def test_shares_come_out_as_the_weights_say() -> None:
    # Weights 1 : 2 : 4 : 8, as near as f32 logits say it.
    logits = np.array([math.log(1), math.log(2), math.log(4), math.log(8)], dtype=np.float32)
    sampler = Sampler(Sampling(temperature=1.0, top_p=1.0, min_p=0.0, seed=2024))
    draws = 15 * 1024
    counts = Counter(sampler.pick(logits, []) for _ in range(draws))
    # Chi square, three degrees of freedom: 16.27 is passed once in a thousand seeds.
    scaled = sum((counts[i] - 1024 * 2**i) ** 2 * 2 ** (3 - i) for i in range(4))
    assert scaled * 100 < 1627 * 1024 * 8
    assert sorted(counts) == [0, 1, 2, 3]


def test_a_token_a_trillion_times_less_likely_weighs_nothing() -> None:
    open_wide = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
    sampler = Sampler(open_wide)
    assert {sampler.pick(row(-29.0, 0.0), []) for _ in range(50)} == {1}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_not_finite_is_a_fault(wrong: float, temperature: float) -> None:
    with pytest.raises(ArithmeticFault, match="A logit is not a finite number"):
        Sampler(Sampling(temperature=temperature)).pick(row(0, wrong, 1), [])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"temperature": 1e-37}, "Temperature 1e-37 drives a logit out"),
        ({"repeat_penalty": 2e-38}, "A penalty drives a logit out"),
        ({"presence_penalty": 3.4e38, "frequency_penalty": 3.4e38}, "A penalty drives a logit out"),
        ({"logit_bias": {1: 3.4e38, 2: 3.4e38}}, "A bias drives a logit out"),
    ],
)
def test_a_stage_that_leaves_the_finite_numbers_is_a_fault(
    change: dict[str, object], fault: str
) -> None:
    with pytest.raises(ArithmeticFault, match=fault):
        Sampler(Sampling(**change)).pick(row(1000, 500, 3e37), [0, 1])  # type: ignore[arg-type]


def test_a_request_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(UsageError, match="token 7, but the vocabulary has 3"):
        Sampler(Sampling(logit_bias={7: 1.0})).pick(row(1, 2, 3), [])
    with pytest.raises(UsageError, match="ban every token"):
        Sampler(Sampling(logit_bias={0: -math.inf}, ignore_eos=True), {1}).pick(row(1, 2), [])
    with pytest.raises(UsageError, match="the model names none"):
        Sampler(Sampling(ignore_eos=True))
    with pytest.raises(UsageError, match="--dry-multiplier needs the tokens"):
        Sampler(Sampling(dry_multiplier=0.8))
