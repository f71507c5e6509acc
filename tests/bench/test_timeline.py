"""Stamps by hand: every nanosecond of the wall is found again, once."""

import numpy as np
import pytest

from muser.bench.timeline import timeline

# Two workers, three entries; the third stands behind a barrier. Play from 1000 to 1100.
PLAY = [
    [[1005, 1025], [1026, 1046], [1062, 1090]],
    [[1010, 1030], [1030, 1060], [1064, 1094]],
]


def test_entries_and_gaps_add_up_to_the_wall():
    found = timeline([1000], [1100], np.array([PLAY]), [False, False, True])
    assert found.wall == 100
    assert found.entries.tolist() == [20, 25, 29]
    assert found.gaps.tolist() == [7.5, 0.5, 10]
    assert found.wake == 7.5
    # Before the third entry worker 0 waits 14 for worker 1, at the end 4.
    assert found.uneven == (14 + 4) / 2
    # From then on: 2 and 4 to the third entry, 6 and 6 to the end, 1 and 0 between the first two.
    assert found.barriers == (1 + 0 + 2 + 4 + 6 + 6) / 2
    assert found.kernels + found.wake + found.uneven + found.barriers == found.wall


def test_the_middle_half_of_the_plays_counts():
    plays = [np.array(PLAY) + 10 * number for number in range(8)]
    begins = [1000 + 10 * number for number in range(8)]
    walls = [100, 100, 100, 900, 104, 104, 1, 100]
    ends = [begin + wall for begin, wall in zip(begins, walls, strict=True)]
    found = timeline(begins, ends, np.array(plays), [False, True, True])
    assert found.wall == 101  # 100, 100, 100, 104
    assert found.kernels == 74


@pytest.mark.parametrize("plays", [1, 2, 3, 5])
def test_any_stamps_add_up(plays):
    rng = np.random.default_rng(plays)
    steps = rng.integers(1, 50, (plays, 3, 4, 2)).reshape(plays, 3, -1)
    stamps = (steps.cumsum(axis=2) + 7).reshape(plays, 3, 4, 2)
    begins = [5] * plays
    ends = [int(play.max()) + 9 for play in stamps]
    found = timeline(begins, ends, stamps, [False, True, False, True])
    parts = found.kernels + found.wake + found.uneven + found.barriers
    assert parts == pytest.approx(found.wall, abs=1e-6)
    assert found.kernels + found.gaps.sum() < found.wall
