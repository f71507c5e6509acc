"""Where the time of a step goes: what every entry took, and the waits between, in full.

On each worker the entries and the gaps around them fill the play from begin to end, so their means
over the workers add up to its wall time exactly. Of many plays the half in the middle, by wall
time, is averaged: a mean keeps that sum, and the outliers are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Nanoseconds, means over the workers: `wall` = the sum of all others.

    `entries` and `gaps` `[entries]`, a gap lying before its entry; of the gaps in front of
    barriers `uneven` is the part in which another worker still worked. `wake` is until the first
    entry began, `barriers` what is left of the gaps and of the end.
    """

    wall: float
    entries: F64
    gaps: F64
    wake: float
    uneven: float
    barriers: float

    @property
    def kernels(self) -> float:
        return float(self.entries.sum())


def timeline(
    begins: Sequence[int], ends: Sequence[int], stamps: NDArray[np.int64], waits: Sequence[bool]
) -> Timeline:
    """Of plays from `begins` to `ends`, with `stamps` int64 `[plays, workers, entries, 2]`;
    `waits`: whether an entry stands behind a barrier.
    """
    first, last = np.asarray(begins), np.asarray(ends)
    middle = middle_half(last - first)
    first, last, stamps = first[middle], last[middle], stamps[middle]
    begin, end = stamps[..., 0], stamps[..., 1]
    before = np.concatenate([first[:, None, None].repeat(stamps.shape[1], 1), end[..., :-1]], -1)
    gaps = begin - before
    tail = last[:, None] - end[..., -1]
    late = end.max(axis=1)  # [plays, entries]: when the last worker was done
    slack = (late[:, None] - end).mean(axis=(0, 1))
    behind = np.asarray([*waits[1:], True])  # the end of the play is a barrier
    uneven = float(slack[behind].sum())
    wake = float(gaps[..., 0].mean())
    waited = float(gaps[..., 1:].mean(axis=(0, 1)).sum() + tail.mean())
    return Timeline(
        wall=float((last - first).mean()),
        entries=(end - begin).mean(axis=(0, 1)),
        gaps=gaps.mean(axis=(0, 1)),
        wake=wake,
        uneven=uneven,
        barriers=waited - uneven,
    )


def middle_half(walls: NDArray[np.int64] | F64) -> NDArray[np.int64]:
    """The indices of the middle half by size; all of fewer than four."""
    order = np.argsort(walls, kind="stable")
    cut = len(order) // 4
    return order[cut : len(order) - cut]
