"""The steps that `muser bench kernels` times, and what has to come out of each."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muser.bench.fixture import fixture_ids
from muser.bench.ours import reference_side
from muser.bench.session import tokenizer_of
from muser.bench.spread import Spread
from muser.devices import Limits, Runner, Step
from muser.devices.feeding import fill, side_by_side, stretch
from muser.errors import WrongTokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step of `rows` rows behind `depth` tokens: one token, or a chunk of a prompt.

    With more than one of `slots` it is one token in each, behind `depth` tokens in each.
    """

    depth: int
    rows: int
    slots: int = 1

    def __post_init__(self) -> None:
        assert self.rows == 1 or self.slots == 1

    @property
    def all_rows(self) -> int:
        return self.rows * self.slots

    def told(self) -> dict[str, int]:
        """For a record."""
        return {"depth": self.depth, "rows": self.all_rows, "slots": self.slots}

    def __str__(self) -> str:
        return f"{self.all_rows} {'row' if self.all_rows == 1 else 'rows'} at depth {self.depth}"


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """`plays` timed plays of each step, on the CPU with each count of threads.

    `threads` also says with how many the reference is computed, there and for a card.
    """

    model: Path
    steps: tuple[StepPlan, ...]
    threads: tuple[int, ...]
    reference: str
    plays: int = 60
    device: str = "cpu"

    def limits(self, chunk: int) -> Limits:
        """What a runner of all steps has to hold, in steps of `chunk` rows or more."""
        context = max(one.depth + one.rows for one in self.steps)
        slots = max(one.slots for one in self.steps)
        most = max(one.all_rows for one in self.steps)
        return Limits(context, slots, max(min(chunk, context), most))


@dataclass(frozen=True, slots=True)
class Known:
    """A step, its text (the same in every slot), and the digest of the last row of its logits by
    the reference.
    """

    plan: StepPlan
    ids: tuple[int, ...]
    logits_sha256: str

    def require(self, logits: NDArray[np.float32]) -> None:
        """Raises `WrongTokens` where one of the rows `[slots, vocabulary]` has other bits."""
        for row in logits:
            if hashlib.sha256(row.astype("<f4").tobytes()).hexdigest() != self.logits_sha256:
                raise WrongTokens(
                    f"{self.plan}: the last logits are not the reference's bits.",
                    "No time is told for them; this is a defect of Muser, please report it.",
                )

    def fill(self, runner: Runner) -> None:
        """Put the tokens before the step into the cache of each slot."""
        for slot in range(self.plan.slots):
            fill(runner, self.ids[: self.plan.depth], slot)

    def step(self) -> Step:
        """The rows; wanted are the last one's logits, or those of every slot."""
        rows = self.ids[self.plan.depth :]
        if self.plan.slots > 1:
            return side_by_side(rows * self.plan.slots, self.plan.depth)
        return stretch(rows, self.plan.depth, 0, [len(rows) - 1])


def known_steps(plan: KernelPlan) -> tuple[Known, ...]:
    """Texts and answers of all steps, computed by a process that has ended. Raises what it does."""
    longest = max(step.depth + step.rows for step in plan.steps)
    text = fixture_ids(longest, tokenizer_of(plan.model))
    answers: dict[int, str] = {}  # by the length of the text
    with reference_side(plan.reference) as side:
        side.load(plan.model, threads=max(plan.threads), context=longest)
        for step in plan.steps:
            size = step.depth + step.rows
            if size not in answers:
                answers[size] = side.greedy(text[:size], 1)[1]
    return tuple(
        Known(step, text[: step.depth + step.rows], answers[step.depth + step.rows])
        for step in plan.steps
    )


def roof_of(size: int, times: Sequence[int]) -> dict[str, Any]:
    """Reading a buffer of that size: the median of all times, and its bytes in a nanosecond."""
    spread = Spread.of(times)
    return {
        "bytes": size,
        "plays": len(times),
        "median_ns": spread.median,
        "least_ns": spread.least,
        "cv": round(spread.cv, 6),
        "gigabytes_per_second": round(size / spread.median, 3),
    }
