"""What is fed while a model's speed is looked at; how fast it is, is nobody's claim here."""

from muser.bench.pace import WARM, batch_times, decode_times, prefill_times
from tests.devices.test_feeding import IDS, Listening


def fed(runner):
    return [(step.tokens.tolist(), step.positions.tolist()) for step in runner.steps]


def test_a_prompt_goes_on_where_it_stood():
    runner = Listening(4)
    found = list(prefill_times(runner, IDS, 3))
    assert [(at, count) for at, count, _ in found] == [(3, 4), (7, 4), (11, 3)]
    assert all(ns > 0 for *_, ns in found)
    assert [positions[0] for _, positions in fed(runner)] == [3, 7, 11]


def test_tokens_one_after_another():
    runner = Listening(4)
    assert len(decode_times(runner, IDS[:7], 20).ns) == 7 - WARM
    assert fed(runner) == [([100 + i], [20 + i]) for i in range(7)]


def test_tokens_side_by_side():
    runner = Listening(4)
    assert len(batch_times(runner, IDS, 3, 6).ns) == 6 - WARM
    assert fed(runner) == [([100 + i, 101 + i, 102 + i], [i] * 3) for i in range(6)]
