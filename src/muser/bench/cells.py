"""Cells: what is timed, the work it stands for, and the judgement of what came out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from muser.bench.digests import token_digest, workload_digest
from muser.bench.interleave import interleave
from muser.bench.side import Sample, Side
from muser.bench.spread import Spread, pair_ratios, speed_ratio
from muser.errors import WrongTokens

OUR_POLICY = "ids and last logits equal the reference run's bits, every repetition"
THEIR_POLICY = "same ids fed; first choices compared; a difference is told with both margins"
STRIDE = 61  # ids between the texts of neighbouring slots


@dataclass(frozen=True, slots=True)
class Cell:
    """`surface` is `prefill`, `decode` or `batch`. `depth`: tokens that stand in each slot's cache
    before the clock starts; `tokens`: those that each slot then takes, one a step, in a prefill
    all at once. `bars`: ratios that were written down before the run.
    """

    surface: str
    depth: int
    tokens: int
    slots: int = 1
    bars: tuple[float, ...] = ()

    @property
    def context(self) -> int:
        return self.depth + self.tokens

    @property
    def timed(self) -> int:
        """Tokens in all."""
        return self.tokens * self.slots

    @property
    def text_ids(self) -> int:
        """How much of the fixture all slots need."""
        own = self.tokens if self.surface == "prefill" else self.depth + 1
        return own + STRIDE * (self.slots - 1)

    def __str__(self) -> str:
        match self.surface:
            case "prefill":
                return f"prefill {self.tokens}"
            case "batch":
                return f"batch {self.slots} × {self.tokens} at depth {self.depth}"
        return f"decode {self.tokens} at depth {self.depth}"


class Greedy(Protocol):
    """What makes a reference; see `muser.bench.ours.MuserSide`."""

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[tuple[int, ...], str]: ...


@dataclass(frozen=True, slots=True)
class Workload:
    """The ids of a cell, and what has to come out, bit for bit."""

    cell: Cell
    prompts: tuple[tuple[int, ...], ...]
    fed: tuple[tuple[int, ...], ...]
    ids: tuple[int, ...]
    logits_sha256: tuple[str, ...]

    @classmethod
    def make(cls, cell: Cell, text: Sequence[int], reference: Greedy) -> "Workload":
        """The reference continues the text greedily; those ids are what is fed."""
        if cell.surface == "prefill":
            whole = tuple(text[: cell.tokens])
            ids, digest = reference.greedy(whole, 1)
            return cls(cell, ((),), (whole,), ids, (digest,))
        prompts, fed, digests = [], [], []
        chosen: list[int] = []
        for slot in range(cell.slots):
            part = tuple(text[slot * STRIDE : slot * STRIDE + cell.depth + 1])
            ids, digest = reference.greedy(part, cell.tokens)
            prompts.append(part[:-1])
            fed.append((part[-1], *ids[:-1]))
            chosen.extend(ids)
            digests.append(digest)
        return cls(cell, tuple(prompts), tuple(fed), tuple(chosen), tuple(digests))

    def run(self, side: Side, *, margins: bool = False) -> Sample:
        if self.cell.surface == "prefill":
            return side.prefill(self.fed[0], margins=margins)
        return side.decode(self.prompts, self.fed, margins=margins)

    def require(self, sample: Sample) -> None:
        """Raises `WrongTokens` where one of our own runs is not the reference's."""
        at = first_difference(sample.ids, self.ids)
        if at is not None:
            raise WrongTokens(
                f"{self.cell}: choice {at} is {_at(sample.ids, at)}, the reference chose"
                f" {_at(self.ids, at)}.",
                "No speed is told for wrong tokens; this is a defect of Muser, please report it.",
            )
        if sample.logits_sha256 != self.logits_sha256:
            raise WrongTokens(
                f"{self.cell}: the last logits are not the reference's bits.",
                "No speed is told for them; this is a defect of Muser, please report it.",
            )


def first_difference(some: Sequence[int], others: Sequence[int]) -> int | None:
    """The first index at which two lists differ; the end of the shorter one counts."""
    for at, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return at
    return None if len(some) == len(others) else min(len(some), len(others))


def measure(work: Workload, ours: Side, theirs: Side | None, repetitions: int) -> dict[str, Any]:
    """Warm up, repeat in turns, judge. Raises `WrongTokens` before any time is told."""
    warm = work.run(ours, margins=theirs is not None)
    work.require(warm)
    if theirs is None:
        mine = [work.run(ours) for _ in range(repetitions)]
        others, first = [], [ours.name] * repetitions
    else:
        rival = work.run(theirs, margins=True)
        pairs = interleave(ours, theirs, repetitions, work.run)
        mine, others = [pair.ours for pair in pairs], [pair.theirs for pair in pairs]
        first = [pair.first for pair in pairs]
    for sample in mine:
        work.require(sample)
    found = {**_described(work), "first": first, "ours": _told(work, mine)}
    if theirs is not None:
        found["theirs"] = _told(work, others)
        found["agreement"] = _agreement(work, warm, rival, others)
        found["ratios"] = _ratios(mine, others)
    return found


def _described(work: Workload) -> dict[str, Any]:
    cell = work.cell
    return {
        "surface": cell.surface,
        "depth": cell.depth,
        "tokens": cell.tokens,
        "slots": cell.slots,
        "bars": list(cell.bars),
        "workload_sha256": workload_digest(work.prompts, work.fed),
        "policy": OUR_POLICY,
    }


def _told(work: Workload, samples: Sequence[Sample]) -> dict[str, Any]:
    """What one side did in all repetitions."""
    spread = Spread.of([sample.ns for sample in samples])
    last = samples[-1]
    return {
        "ns": list(spread.ns),
        "median_ns": spread.median,
        "least_ns": spread.least,
        "most_ns": spread.most,
        "cv": round(spread.cv, 6),
        "tokens_per_second": round(work.cell.timed / spread.median * 1e9, 3),
        "ids_sha256": sorted({token_digest(sample.ids) for sample in samples}),
        "logits_sha256": None if last.logits_sha256 is None else list(last.logits_sha256),
    }


def _agreement(
    work: Workload, warm: Sample, rival: Sample, others: Sequence[Sample]
) -> dict[str, Any]:
    """Theirs against ours, choice by choice on the same fed ids."""
    at = first_difference(rival.ids, work.ids)
    pairs = zip(rival.ids, work.ids, strict=False)
    return {
        "policy": THEIR_POLICY,
        "exact": at is None,
        "choices": len(work.ids),
        "differences": sum(one != other for one, other in pairs),
        "first_difference": at,
        "our_margin": None if at is None else _margin(warm, at),
        "their_margin": None if at is None else _margin(rival, at),
        "repeats_itself": {sample.ids for sample in others} == {rival.ids},
    }


def _margin(sample: Sample, at: int) -> float | None:
    margins = sample.margins
    return round(margins[at], 6) if margins is not None and at < len(margins) else None


def _at(ids: Sequence[int], at: int) -> int | str:
    return ids[at] if at < len(ids) else "missing"


def _ratios(mine: Sequence[Sample], others: Sequence[Sample]) -> dict[str, Any]:
    ours = Spread.of([sample.ns for sample in mine])
    theirs = Spread.of([sample.ns for sample in others])
    each = pair_ratios(ours, theirs)
    return {
        "of_medians": round(speed_ratio(ours, theirs), 4),
        "each": [round(ratio, 4) for ratio in each],
        "least": round(min(each), 4),
    }
