"""A measured step, summed up by pipeline: what the table and the picture of `kernels` show."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """All entries of one label: nanoseconds, bytes from memory, multiplications and additions."""

    label: str
    entries: int
    ns: float
    bytes: int
    operations: int

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes / self.ns if self.ns else 0.0

    @property
    def gigaops_per_second(self) -> float:
        return self.operations / self.ns if self.ns else 0.0


CPU_WAITS = {
    "wake_ns": "waking the workers",
    "uneven_ns": "waiting for the slowest worker",
    "barriers_ns": "barriers",
}
CARD_WAITS = {
    "starts_ns": "starts of the launches",
    "copies_ns": "copies around them",
    "overlapped_ns": "hidden by early starts",
}
"""The parts of a step's wall time that are no kernels; what was hidden is negative."""
BETWEEN = "all between the kernels"


def is_of_card(step: Mapping[str, Any]) -> bool:
    return "starts_ns" in step


def waits(step: Mapping[str, Any]) -> dict[str, float]:
    """What these parts are called, to nanoseconds."""
    kinds = CARD_WAITS if is_of_card(step) else CPU_WAITS
    return {what: step[key] for key, what in kinds.items()}


def gaps(step: Mapping[str, Any]) -> float:
    """Nanoseconds between kernels, all together; negative where more was hidden than there was."""
    return sum(waits(step).values())


def by_label(step: Mapping[str, Any]) -> list[Line]:
    """The pipelines of a step of a `kernels` record, the longest first."""
    columns = step["entries"]
    sums: dict[int, list[float]] = {}
    rows = zip(
        columns["label"], columns["ns"], columns["bytes"], columns["operations"], strict=True
    )
    for label, *values in rows:
        total = sums.setdefault(label, [0, 0.0, 0, 0])
        for at, value in enumerate((1, *values)):
            total[at] += value
    lines = [
        Line(columns["labels"][label], int(count), ns, int(size), int(operations))
        for label, (count, ns, size, operations) in sums.items()
    ]
    return sorted(lines, key=lambda line: (-line.ns, line.label))


def name(step: Mapping[str, Any]) -> str:
    """What a step computes."""
    slots = step.get("slots", 1)
    if slots > 1:
        return f"a token in each of {slots} slots at depth {step['depth']}"
    what = "one token" if step["rows"] == 1 else f"{step['rows']} tokens of a prompt"
    return f"{what} at depth {step['depth']}"


def place(run: Mapping[str, Any]) -> str:
    """Where a run's steps were played."""
    card = card_of(run["sides"]["ours"])
    return f"threads: {run['threads']}" if card is None else str(card["name"])


def card_of(side: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a side says of the card that did its work; records of a card may lack it."""
    found: Mapping[str, Any] | None = side.get("settings", {}).get("card")
    return found


def without(step: Mapping[str, Any]) -> str:
    """What `ordinary_ns` is the time of."""
    return "by the host's clock" if is_of_card(step) else "without stamps"
