"""Texts into a runner's slots: the steps that they are cut into."""

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from muser.devices.device import Runner, Step

F32 = NDArray[np.float32]
Ids = Sequence[int] | NDArray[np.int32]


def stretch(ids: Ids, first: int = 0, slot: int = 0, outputs: Ids = ()) -> Step:
    """A step of one slot: `ids` stand at positions `first`, `first` + 1, …"""
    tokens = np.asarray(ids, np.int32)
    return Step(
        tokens=tokens,
        positions=np.arange(first, first + len(tokens), dtype=np.int32),
        slots=np.full(len(tokens), slot, np.int32),
        outputs=np.asarray(outputs, np.int32),
    )


def side_by_side(ids: Ids, position: int) -> Step:
    """A step of one token in each of the first slots, all at `position` and all wanted."""
    every = np.arange(len(ids), dtype=np.int32)
    return Step(np.asarray(ids, np.int32), np.full_like(every, position), every, every)


def fill(runner: Runner, ids: Ids, slot: int = 0) -> None:
    """Put `ids` into an empty slot, in the runner's largest steps; no row is wanted."""
    for step in _steps(ids, (runner.limits.chunk,), slot, wanted=False):
        runner.forward(step)


def logits_of(runner: Runner, ids: Ids, cuts: Sequence[int], slot: int = 0) -> F32:
    """Logits of every position of a text, cut into steps of `cuts` rows, again and again."""
    return np.concatenate([runner.forward(step) for step in _steps(ids, cuts, slot, wanted=True)])


def _steps(ids: Ids, cuts: Sequence[int], slot: int, *, wanted: bool) -> Iterator[Step]:
    first, sizes = 0, cycle(cuts)
    while first < len(ids):
        part = ids[first : first + next(sizes)]
        yield stretch(part, first, slot, range(len(part)) if wanted else ())
        first += len(part)
