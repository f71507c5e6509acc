"""Plays by hand: what each part of a step on a card takes, and that nothing is told twice."""

import numpy as np
import pytest

from muser.bench.account import account

# Copies of 100 around three launches; a start takes 20, a stamp 7. 40 are hidden as it is played.
PIECES = [100, 20 + 300, 20 + 5, 20 + 60, 100]
IS_LAUNCH = [False, True, True, True, False]
STAMP, HIDDEN = 7, 40
SERIAL = sum(PIECES) + STAMP
STAMPED = [one + STAMP for one in PIECES]


def test_parts_add_up_to_the_wall():
    found = account([SERIAL - HIDDEN], [SERIAL], [STAMPED], [19, 20, 90], IS_LAUNCH)
    assert found.wall == sum(PIECES) - HIDDEN
    assert found.kernels.tolist() == [0, 300, 5, 60, 0]
    assert (found.starts, found.copies, found.overlapped) == (60, 200, -HIDDEN)
    assert found.stamp == STAMP


def test_the_middle_half_of_each_way_counts():
    whole = [SERIAL - HIDDEN + more for more in (-500, 0, 2, 900)]
    serial = [SERIAL + more for more in (4, 0, -700, 800)]
    stamped = [[one + more for one in STAMPED] for more in (0, 50, -9, 0)]
    found = account(whole, serial, stamped, [20], IS_LAUNCH)
    assert found.stamp == pytest.approx((sum(STAMPED) - SERIAL - 2) / 4)
    assert found.overlapped == pytest.approx(1 - HIDDEN - 2)


@pytest.mark.parametrize("plays", [1, 2, 3, 5, 8])
def test_any_times_add_up(plays):
    rng = np.random.default_rng(plays)
    stamped = rng.uniform(1, 50, (plays, 9))
    launches = [False, *[True] * 5, False, True, False]
    found = account(
        rng.uniform(1, 90, plays),
        rng.uniform(1, 90, plays),
        stamped,
        rng.uniform(1, 3, 4),
        launches,
    )
    parts = found.kernels.sum() + found.starts + found.copies + found.overlapped
    assert parts == pytest.approx(found.wall, abs=1e-9)
    assert np.flatnonzero(found.kernels).tolist() == np.flatnonzero(launches).tolist()
