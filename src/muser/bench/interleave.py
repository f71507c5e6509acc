"""Two sides in one run, in turns that cancel a drift: A B, B A, A B, …"""

from collections.abc import Callable
from dataclasses import dataclass

from muser.bench.side import Sample, Side

Work = Callable[[Side], Sample]


@dataclass(frozen=True, slots=True)
class Pair:
    """One repetition on both sides; `first` names the side that went first."""

    ours: Sample
    theirs: Sample
    first: str


def interleave(ours: Side, theirs: Side, pairs: int, work: Work) -> tuple[Pair, ...]:
    """`pairs` repetitions of `work`, the order turned round from each to the next (ABBA)."""
    return tuple(_pair(ours, theirs, work, ours_first=at % 2 == 0) for at in range(pairs))


def _pair(ours: Side, theirs: Side, work: Work, *, ours_first: bool) -> Pair:
    if ours_first:
        mine = work(ours)
        return Pair(mine, work(theirs), ours.name)
    other = work(theirs)
    return Pair(work(ours), other, theirs.name)
