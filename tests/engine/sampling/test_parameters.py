"""`Sampling`: defaults, and a sentence for every value without a meaning."""

import dataclasses
import math

import pytest

from muser.engine.sampling.parameters import STAGES, Sampling
from muser.errors import UsageError


def test_the_default_is_greedy_with_upstreams_stages() -> None:
    s = Sampling()
    assert s.greedy
    assert (s.top_k, s.top_p, s.min_p, s.typical_p, s.top_n_sigma) == (40, 0.95, 0.05, 1.0, -1.0)
    assert (s.repeat_penalty, s.presence_penalty, s.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (s.repeat_last_n, s.min_keep, s.seed) == (64, 0, None)
    assert " ".join(s.order) == (
        "penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.1},
        {"dynatemp_range": 0.5},
        {"mirostat": 1},
        {"mirostat": 2},
        {"adaptive_p_target": 0.0},
    ],
)
def test_each_of_these_makes_it_draw(change: dict[str, float]) -> None:
    assert not Sampling(**change).greedy  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"temperature": -0.1},
            "--temperature cannot be -0.1. Give a number from 0 to 3.40282e+38.",
        ),
        ({"temperature": math.nan}, "--temperature cannot be nan. Give a number from 0 to"),
        ({"temperature": math.inf}, "--temperature cannot be inf."),
        ({"temperature": 1e-40}, "--temperature cannot be 1e-40. Give 0 or at least 1.2e-38."),
        ({"temperature": "1"}, "--temperature cannot be '1'."),
        ({"temperature": True}, "--temperature cannot be True."),
        ({"top_p": 1.5}, "--top-p cannot be 1.5. Give a number from 0 to 1."),
        ({"min_p": -0.01}, "--min-p cannot be -0.01. Give a number from 0 to 1."),
        ({"typical_p": math.nan}, "--typical-p cannot be nan."),
        ({"top_k": 2.0}, "--top-k cannot be 2.0. Give a whole number from -1 to 2147483647."),
        ({"top_k": -2}, "--top-k cannot be -2."),
        ({"top_k": True}, "--top-k cannot be True."),
        ({"top_n_sigma": -1.5}, "--top-n-sigma cannot be -1.5."),
        ({"repeat_penalty": 0.0}, "--repeat-penalty cannot be 0.0."),
        ({"presence_penalty": math.nan}, "--presence-penalty cannot be nan."),
        ({"frequency_penalty": math.inf}, "--frequency-penalty cannot be inf."),
        ({"repeat_last_n": -2}, "--repeat-last-n cannot be -2."),
        ({"dry_multiplier": -1.0}, "--dry-multiplier cannot be -1.0."),
        ({"dry_base": 0.5}, "--dry-base cannot be 0.5. Give a number from 1 to"),
        ({"dry_allowed_length": -1}, "--dry-allowed-length cannot be -1."),
        ({"dry_last_n": -2}, "--dry-last-n cannot be -2."),
        ({"dry_breakers": ("",)}, "--dry-breakers cannot be ['']."),
        ({"xtc_probability": 1.1}, "--xtc-probability cannot be 1.1."),
        ({"xtc_threshold": math.nan}, "--xtc-threshold cannot be nan."),
        ({"dynatemp_range": -1.0}, "--dynatemp-range cannot be -1.0."),
        ({"dynatemp_exponent": -1.0}, "--dynatemp-exponent cannot be -1.0."),
        ({"mirostat": 3}, "--mirostat cannot be 3. Give a whole number from 0 to 2."),
        ({"mirostat_tau": -1.0}, "--mirostat-tau cannot be -1.0."),
        ({"mirostat_eta": math.nan}, "--mirostat-eta cannot be nan."),
        ({"adaptive_p_target": 1.1}, "--adaptive-p-target cannot be 1.1."),
        ({"adaptive_p_decay": 1.0}, "--adaptive-p-decay cannot be 1.0."),
        ({"min_keep": -1}, "--min-keep cannot be -1."),
        ({"logit_bias": {-1: 0.0}}, "--logit-bias cannot be -1."),
        ({"logit_bias": {1: math.inf}}, "--logit-bias cannot be inf."),
        ({"logit_bias": {1: math.nan}}, "--logit-bias cannot be nan."),
        ({"ignore_eos": 1}, "--ignore-eos cannot be 1. Give true or false."),
        (
            {"seed": 2**32},
            "--seed cannot be 4294967296. Give a whole number from -1 to 4294967295.",
        ),
        ({"seed": 1.0}, "--seed cannot be 1.0."),
        (
            {"order": ("top_q",)},
            "--order cannot be ['top_q']. Give each at most once of penalties,",
        ),
        ({"order": ("top_k", "top_k")}, "--order cannot be ['top_k', 'top_k']."),
        ({"mirostat": 2, "adaptive_p_target": 0.5}, "--mirostat and --adaptive-p-target both want"),
    ],
)
def test_a_value_without_meaning_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Sampling(**change)  # type: ignore[arg-type]
    assert str(refusal.value).startswith(sentence)


def test_whole_numbers_are_numbers_and_bans_are_biases() -> None:
    s = Sampling(temperature=1, top_p=1, logit_bias={3: -math.inf, 4: -2}, seed=-1)
    assert (s.temperature, s.top_p, s.seed) == (1, 1, -1)


def test_what_the_caller_changes_later_changes_nothing() -> None:
    bias, order = {1: 2.0}, ["top_k", "temperature"]
    s = Sampling(logit_bias=bias, order=order)  # type: ignore[arg-type]
    bias[1] = 3.0
    order.append("xtc")
    assert s.logit_bias == {1: 2.0}
    assert s.order == ("top_k", "temperature")


def test_it_compares_hashes_and_copies_as_data() -> None:
    s = Sampling(logit_bias={1: 2.0}, seed=3)
    assert dataclasses.replace(s) == s
    assert hash(dataclasses.replace(s)) == hash(s)
    assert dataclasses.asdict(s)["logit_bias"] == {1: 2.0}
    assert dataclasses.replace(s, top_k=1) != s


def test_every_stage_has_a_place_in_the_default_order_once() -> None:
    assert len(set(STAGES)) == len(STAGES) == 9
