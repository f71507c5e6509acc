"""A measured step, summed up by pipeline: what the tables and the picture of `kernels` show."""

from collections.abc import Iterator, Mapping
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
LEAST_WIDE = 44  # letters of the first column of `block`
LEAST_SHOWN = 1 << 16  # bytes from which on a rate is worth a column


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


def block(run: Mapping[str, Any], step: Mapping[str, Any]) -> Iterator[str]:
    """A line for each pipeline of a step and for each wait, and the sum."""
    wall, roof, lines = step["wall_ns"], run["roof"]["gigabytes_per_second"], by_label(step)
    title = f"{name(step)}, {place(run)}"
    wide = max(LEAST_WIDE, *(len(text) for text in (title, *(line.label for line in lines))))
    head = f"{'entries':>7} {'µs':>10} {'share':>6} {'MB':>8} {'GB/s':>7} {'of roof':>7}"
    yield f"{title:{wide}} {head} {'GOP/s':>7}"
    for line in lines:
        rate, rest = "", ""
        if line.bytes >= LEAST_SHOWN:
            speed = line.gigabytes_per_second
            rate = f" {line.bytes / 1e6:8.2f} {speed:7.1f} {speed / roof:7.0%}"
        if line.operations:
            rest = f" {line.gigaops_per_second:7.0f}"
        times = f"{line.entries:7} {line.ns / 1e3:10.1f} {line.ns / wall:6.1%}"
        yield f"{line.label:{wide}} {times}{rate:25}{rest}".rstrip()
    for what, ns in {**waits(step), BETWEEN: gaps(step)}.items():
        yield f"{what:{wide}} {'':7} {ns / 1e3:10.1f} {ns / wall:6.1%}"
    yield (
        f"{'all of it, on the wall':{wide}} {'':7} {wall / 1e3:10.1f} {1:6.0%}"
        f"   {without(step)} {step['ordinary_ns'] / 1e3:.1f}"
    )
