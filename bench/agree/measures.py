"""The statistics of agreement and their bounds; plain records that go into the report."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agree.scores import Scores


@dataclass(frozen=True, slots=True)
class Bound:
    """At positions where the reference's margin exceeds `margin`, at most `most` of them may have
    another first choice; fewer than `least` such positions prove nothing."""

    margin: float
    most: float
    least: int


BOUNDS = (Bound(margin=0.75, most=0.0, least=500), Bound(margin=0.1, most=0.02, least=500))
LOSS_BOUND = 0.005  # nat
LOGIT_BOUND = 1e-2


@dataclass(frozen=True, slots=True)
class Held:
    """How a bound fared: `positions` beyond its margin, `disagreements` among them."""

    margin: float
    positions: int
    disagreements: int
    passed: bool


@dataclass(frozen=True, slots=True)
class TopChoice:
    """First choices compared. `largest_margin` is the reference's largest margin at a
    disagreement, 0 if there is none."""

    positions: int
    disagreements: int
    largest_margin: float
    bounds: tuple[Held, ...]
    passed: bool


def compare_tops(
    reference: Scores, candidate: Scores, bounds: tuple[Bound, ...] = BOUNDS
) -> TopChoice:
    """Hold the candidate's first choices against the reference's, position by position."""
    differs = reference.top != candidate.top
    held = tuple(_hold(bound, reference.margin, differs) for bound in bounds)
    return TopChoice(
        positions=len(differs),
        disagreements=int(differs.sum()),
        largest_margin=float(reference.margin[differs].max(initial=0.0)),
        bounds=held,
        passed=all(entry.passed for entry in held),
    )


def _hold(bound: Bound, margin: NDArray[np.float64], differs: NDArray[np.bool_]) -> Held:
    decided = margin > bound.margin
    positions, wrong = int(decided.sum()), int((differs & decided).sum())
    passed = positions >= bound.least and wrong <= bound.most * positions
    return Held(bound.margin, positions, wrong, passed)


@dataclass(frozen=True, slots=True)
class Loss:
    """Mean losses in nats over chunks, and their paired difference with its standard error."""

    chunks: int
    tokens: int
    reference: float
    candidate: float
    difference: float
    standard_error: float
    bound: float
    passed: bool


def compare_losses(
    reference: list[Scores], candidate: list[Scores], bound: float = LOSS_BOUND
) -> Loss:
    """Candidate minus reference, one pair a chunk; chunks are taken as independent."""
    pairs = np.array(
        [(a.loss.mean(), b.loss.mean()) for a, b in zip(reference, candidate, strict=True)]
    )
    differences = pairs[:, 1] - pairs[:, 0]
    mean = float(differences.mean())
    return Loss(
        chunks=len(pairs),
        tokens=sum(len(scores.loss) for scores in reference),
        reference=float(pairs[:, 0].mean()),
        candidate=float(pairs[:, 1].mean()),
        difference=mean,
        standard_error=float(differences.std(ddof=1) / np.sqrt(len(pairs))),
        bound=bound,
        passed=abs(mean) <= bound,
    )


@dataclass(slots=True)
class LogitError:
    """Norm of the difference over the norm of the reference, over all rows added so far."""

    bound: float | None = None
    squares: list[tuple[float, float]] = field(default_factory=list)  # a row's, of both norms

    def add(self, reference: NDArray[np.float32], candidate: NDArray[np.float32]) -> None:
        for ours, theirs in zip(candidate, reference, strict=True):
            exact = theirs.astype(np.float64)
            difference = ours - exact
            self.squares.append((float(difference @ difference), float(exact @ exact)))

    def record(self) -> dict[str, object]:
        """The error over all rows, that of the worst row, and whether the bound is kept."""
        rows = np.array(self.squares)
        difference, norm = rows.sum(axis=0)
        relative = float(np.sqrt(difference / norm))
        worst = float(np.sqrt((rows[:, 0] / rows[:, 1]).max()))
        kept = self.bound is None or relative <= self.bound
        return {
            "relative": relative,
            "worst_row": worst,
            "rows": len(rows),
            "bound": self.bound,
            "passed": kept,
        }
