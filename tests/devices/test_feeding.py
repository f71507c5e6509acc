"""Texts cut into steps: every token once, at its position, and no more rows than are allowed."""

import numpy as np
import pytest

from muser.devices import Limits
from muser.devices.feeding import fill, logits_of, side_by_side, stretch

IDS = tuple(range(100, 111))


class Listening:
    """A runner whose row of logits is a token and its position; keeps the steps."""

    def __init__(self, chunk):
        self.limits, self.steps = Limits(64, 4, chunk), []

    def forward(self, step):
        self.steps.append(step)
        return np.stack([step.tokens, step.positions], axis=1)[step.outputs].astype(np.float32)

    choose = forward


def test_a_stretch_stands_in_one_slot():
    step = stretch(IDS[:3], 5, 2, [0, 2])
    assert step.tokens.tolist() == [100, 101, 102]
    assert step.positions.tolist() == [5, 6, 7]
    assert step.slots.tolist() == [2, 2, 2]
    assert step.outputs.tolist() == [0, 2]
    for array in (step.tokens, step.positions, step.slots, step.outputs, stretch(()).outputs):
        assert array.dtype == np.int32


def test_a_token_in_each_slot():
    step = side_by_side(IDS[:3], 9)
    assert step.positions.tolist() == [9, 9, 9]
    assert step.slots.tolist() == step.outputs.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("cuts", "sizes"),
    [([1], [1] * 11), ([4], [4, 4, 3]), ([2, 5], [2, 5, 2, 2]), ([11], [11]), ([64], [11])],
)
def test_every_position_is_wanted_once(cuts, sizes):
    runner = Listening(64)
    logits = logits_of(runner, np.array(IDS, np.int32), cuts, slot=3)
    assert logits.tolist() == [[token, at] for at, token in enumerate(IDS)]
    assert [len(step.tokens) for step in runner.steps] == sizes
    assert all((step.slots == 3).all() for step in runner.steps)


def test_a_slot_is_filled_in_the_largest_steps():
    runner = Listening(4)
    fill(runner, IDS, 1)
    assert [step.tokens.tolist() for step in runner.steps] == [
        [100, 101, 102, 103], [104, 105, 106, 107], [108, 109, 110],
    ]  # fmt: skip
    assert [step.positions[0] for step in runner.steps] == [0, 4, 8]
    assert all(len(step.outputs) == 0 for step in runner.steps)
    fill(runner, (), 1)
    assert len(runner.steps) == 3
