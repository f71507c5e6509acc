"""Where a step's time on a card goes, so that every nanosecond of it is told once.

Of the three ways in which `muser.devices.cuda` plays a step, the stamped one gives each piece's
time and that of writing a stamp: what it takes longer than the same pieces without stamps, shared
out evenly. An empty launch, measured beside it, is what each launch takes without any work: the
rest of its time is its kernel's. What the step as it is takes less than all of these one after
another was hidden, since kernels begin before those before them have ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from muser.bench.timeline import middle_half

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Account:
    """Nanoseconds: `wall` = the sum of `kernels` + `starts` + `copies` + `overlapped`.

    `kernels` `[pieces]` has zeros for copies. `starts`: all launches, as if they were empty.
    `overlapped`: what was hidden, negative. `stamp`: what writing down the time takes, once.
    """

    wall: float
    kernels: F64
    starts: float
    copies: float
    overlapped: float
    stamp: float


def account(
    whole: Sequence[float],
    serial: Sequence[float],
    stamped: Sequence[Sequence[float]],
    empty: Sequence[float],
    launches: Sequence[bool],
) -> Account:
    """Of some plays in each way: means over the middle halves, by their length.

    `stamped` is `[plays, pieces]`, `launches` says which of two or more pieces are launches;
    `empty` are times of an empty one.
    """
    stamps = np.asarray(stamped, np.float64)
    pieces = stamps[middle_half(stamps.sum(axis=1))].mean(axis=0)
    alone, together = _mean(serial), _mean(whole)
    stamp = (float(pieces.sum()) - alone) / (len(pieces) - 1)  # the others have one too
    start, are_launches = median(empty), np.asarray(launches, bool)
    pieces = pieces - stamp
    return Account(
        wall=together - stamp,
        kernels=np.where(are_launches, pieces - start, 0.0),
        starts=start * int(are_launches.sum()),
        copies=float(pieces[~are_launches].sum()),
        overlapped=together - alone,
        stamp=stamp,
    )


def _mean(times: Sequence[float]) -> float:
    found = np.asarray(times, np.float64)
    return float(found[middle_half(found)].mean())
