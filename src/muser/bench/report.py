"""docs/benchmarks.md: every record of a folder, in order, each figure linked to its record.

The same records give the same bytes. Nothing is left out: a run that missed its bar, that others
disturbed or whose rival chose other tokens stands there like any other, and again under "Misses";
one that failed has no figures and stands there alone.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muser.bench import tables
from muser.bench.breakdown import card_of
from muser.bench.misses import misses
from muser.bench.record import read_all

HEAD = """\
# Benchmarks

Written by `muser bench report` from the records in [{folder}]({folder}), one file for each run,
named by time and content. Don't edit this page: measure again and write it again.

* A ratio is ours ÷ theirs in speed, of medians; above 1 Muser is faster. *Least pair* is the worst
  of the repetitions, which went in turns (A B, B A, …) in one run, each side in its own process.
* Both sides were fed the same ids. Every one of Muser's timed runs, warm-up included, chose the ids
  and had the last logits of a reference run, bit for bit; otherwise there would be no figure. The
  reference is another instruction set; for a card it may be the same card in small steps, which the
  record says. *Threads* names the device too where that is not the CPU. *Choices* compares the
  rival's choices with those: engines that round elsewhere may differ, and where they do, both
  margins (first minus second logit) at the first difference are told.
* tok/s is of the median repetition; CV is the population's standard deviation over the mean.
* *Quiet* means that before, during and after the run others took at most a tenth of a processor. A
  figure of a run that was not is marked **noisy** and is no evidence.
* A figure holds for its machine, model file, sizes and threads, and for nothing else. The text is
  synthetic: numbered sentences.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, the name of its link and where that leads."""

    name: str
    link: str
    record: Mapping[str, Any]

    def linked(self, figure: str) -> str:
        return f"[{figure}][{self.name}]"


def report(records: Path, out: Path) -> str:
    """The page, as it would lie at `out`. Raises `FormatError` for a record that was edited."""
    entries = [
        Entry(f"r{number}", _relative(path, out.parent), record)
        for number, (path, record) in enumerate(read_all(records), 1)
    ]
    lines = [*HEAD.format(folder=_relative(records, out.parent)).splitlines(), *_body(entries)]
    return "\n".join(lines) + "\n"


def _body(entries: Sequence[Entry]) -> Iterator[str]:
    if not entries:
        yield ""
        yield "No records yet."
        return
    machines = _distinct(entry.record["machine"] for entry in entries)
    yield from _machines(machines)
    for number, machine in enumerate(machines, 1):
        there = [entry for entry in entries if entry.record["machine"] == machine]
        for model in _distinct(entry.record["model"] for entry in there):
            some = [entry for entry in there if entry.record["model"] == model]
            some = [entry for entry in some if "failed" not in entry.record]
            yield from ("", f"## {model['file']} on machine {number}", "")
            yield f"{model['bytes']:,} bytes, SHA-256 `{model['sha256']}`."
            for make in tables.ALL:
                yield from make(some)
    yield from ("", "## Misses", "")
    found = [line for entry in entries for line in misses(entry.record, entry.linked)]
    yield from found or ["None."]
    yield from _sides(entries)
    yield ""
    yield from (f"[{entry.name}]: {entry.link}" for entry in entries)


def _machines(machines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("", "## Machines", "")
    yield "| | processor | family/model/stepping | cores | cache | memory | system |"
    yield "|---:|---|---|---:|---|---:|---|"
    for number, machine in enumerate(machines, 1):
        virtual = ", virtual" if machine["virtual"] else ""
        yield tables.row(
            str(number),
            machine["processor"] + virtual,
            machine["family"],
            str(machine["cores"]),
            machine["cache"],
            f"{machine['memory_bytes'] / 1e9:.1f} GB",
            machine["system"],
        )


def _sides(entries: Sequence[Entry]) -> Iterator[str]:
    """Every engine that ran: version, build, instruction sets, libraries by hash."""
    yield from ("", "## What ran", "")
    seen: dict[str, list[str]] = {}
    for entry in entries:
        failed = (entry.record["failed"],) if "failed" in entry.record else ()
        for run in (*entry.record.get("runs", ()), *failed):
            for side in run["sides"].values():
                names = seen.setdefault(_identity(side), [])
                if entry.linked(entry.name) not in names:
                    names.append(entry.linked(entry.name))
    for said, names in seen.items():
        yield f"* {said} In {', '.join(names)}."


def _identity(side: Mapping[str, Any]) -> str:
    libraries = ", ".join(
        f"{name} `{digest}`" for name, digest in sorted(side.get("libraries", {}).items())
    )
    build = side.get("build", "")
    build = build if isinstance(build, str) else json.dumps(build, sort_keys=True)
    sets = side.get("instruction_sets", "")
    sets = sets if isinstance(sets, str) else ", ".join(sets)
    return tables.plain(
        f"{tables.named(side)}; instruction sets: {sets}; build: {build}; libraries: {libraries}"
        f"{_card(side)}{_offloaded(side)}."
    )


def _card(side: Mapping[str, Any]) -> str:
    card = card_of(side)
    if card is None:
        return ""
    return (
        f"; card: {card['name']}, compute capability {card['capability']}, driver"
        f" {card['driver']}, {card['compiler']}"
    )


def _offloaded(side: Mapping[str, Any]) -> str:
    """What a rival said of its cards; records of the CPU have no such lines."""
    settings = side.get("settings", {})
    cards = ", ".join(f"{card['device']} {card['name']}" for card in settings.get("cards", ()))
    on = f"; on {cards}" if cards else ""
    layers = settings.get("offloaded")
    held = f"; {layers['layers']} of {layers['of']} layers on cards" if layers else ""
    return f"{on}{held}"


def _distinct(items: Iterator[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each once, in order of first appearance."""
    found: list[Mapping[str, Any]] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()
