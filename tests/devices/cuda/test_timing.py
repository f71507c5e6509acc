"""A step timed by the card's own clock, and what it is compared with."""

import pytest

from muser.devices import Limits
from muser.devices.cuda import CudaRunner
from muser.devices.cuda.driver import open_card
from muser.devices.cuda.roof import EMPTY_LAUNCHES
from muser.errors import Cancelled, DeviceError
from tests.devices.cuda.fake_driver import (
    COPY,
    EARLY,
    READ_RATE,
    STAMP,
    START,
    FakeDriver,
    Status,
    cost,
)
from tests.devices.cuda.shim_card import shim_library
from tests.devices.cuda.small import LENGTH, step


def test_a_step_in_three_ways(runner, model):
    """Each is the oracle's step, and takes what the clock of the card says."""
    _, _, ids, expected = model
    runner.forward(step(ids, 0, 17))
    for first, last, outputs in ((17, 18, [0]), (18, 21, [0, 2]), (3, 20, [16])):
        one = step(ids, first, last, outputs)
        timed = runner.timed(one)
        wanted = expected[first:last][outputs].tobytes()
        assert [rows.tobytes() for rows in timed.logits] == [wanted] * 3
        costs = [*costs_of(timed.pieces)]
        launches = sum(piece.launch is not None for piece in timed.pieces)
        assert timed.stamped == pytest.approx([cost + STAMP for cost in costs])
        assert timed.serial == pytest.approx(sum(costs) + STAMP)
        assert timed.whole == pytest.approx(sum(costs) + STAMP - launches * (START - EARLY))
        assert {piece.is_tail for piece in timed.pieces} == {False, True}
    assert any("matvec" in label for labels in runner.labels.values() for label in labels)


def costs_of(pieces):
    """What the fake card's clock moves by: a copy before a part's launches, one behind them."""
    for piece in pieces:
        if piece.launch is None:
            yield COPY
        else:
            yield START + cost(piece.launch.kernel[1], bytes(piece.launch.args))


def test_a_timed_step_is_recorded_once(fake, runner, model):
    ids = model[2]
    runner.timed(step(ids, 0, 1))
    made = {name: fake.calls.count(name) for name in ("cuGraphInstantiate", "cuEventCreate")}
    for first in range(1, 4):
        runner.timed(step(ids, first, first + 1))
    assert made == {name: fake.calls.count(name) for name in made}
    runner.cancel()
    with pytest.raises(Cancelled):
        runner.timed(step(ids, 4, 5))


def test_a_card_of_older_days_overlaps_nothing(monkeypatch, model):
    old = FakeDriver(capability=(8, 0))
    monkeypatch.setattr("muser.devices.cuda.driver.driver_module", lambda: old)
    graph, weights, ids, _ = model
    runner = CudaRunner(open_card(), shim_library("sm_80"), graph, weights, Limits(LENGTH, 1, 128))
    timed = runner.timed(step(ids, 0, 1))
    assert timed.whole == timed.serial
    runner.close()
    assert not old.held


def test_the_roof_is_a_read_of_every_byte(runner):
    size = 100_000
    assert runner.reading_times(size, 3) == pytest.approx(
        [START + size // 16 * 16 / READ_RATE + STAMP] * 3
    )
    assert runner.empty_launch(2) == pytest.approx([START + STAMP / EMPTY_LAUNCHES] * 2)


def test_memory_that_forgets_is_no_roof(runner, monkeypatch):
    monkeypatch.setattr(FakeDriver, "cuMemsetD8Async", lambda *_: (Status.CUDA_SUCCESS,))
    with pytest.raises(DeviceError, match="read other bytes than were written"):
        runner.reading_times(1 << 12, 1)
