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


WAITS = {
    "wake_ns": "waking the workers",
    "uneven_ns": "waiting for the slowest worker",
    "barriers_ns": "barriers",
}
"""The parts of a step's wall time that are no kernels."""


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
    what = "one token" if step["rows"] == 1 else f"{step['rows']} tokens of a prompt"
    return f"{what} at depth {step['depth']}"
