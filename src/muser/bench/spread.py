"""Statistics of repetitions, as integers of nanoseconds come in."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Spread:
    """`ns` as measured, all of them; `median` is the upper middle of an even count; `cv` is the
    population's standard deviation over the mean.
    """

    ns: tuple[int, ...]
    median: int
    least: int
    most: int
    cv: float

    @classmethod
    def of(cls, ns: Sequence[int]) -> "Spread":
        mean = sum(ns) / len(ns)
        deviation = sqrt(sum((one - mean) ** 2 for one in ns) / len(ns))
        return cls(
            ns=tuple(ns),
            median=sorted(ns)[len(ns) // 2],
            least=min(ns),
            most=max(ns),
            cv=deviation / mean,
        )


def speed_ratio(ours: Spread, theirs: Spread) -> float:
    """Ours over theirs in speed, of the medians: above 1, ours is faster."""
    return theirs.median / ours.median


def pair_ratios(ours: Spread, theirs: Spread) -> tuple[float, ...]:
    """The same of every repetition."""
    return tuple(other / mine for mine, other in zip(ours.ns, theirs.ns, strict=True))
