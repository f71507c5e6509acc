"""The tables of docs/benchmarks.md, one function each: entries in, lines out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from muser.bench.breakdown import (
    BETWEEN,
    by_label,
    card_of,
    gaps,
    is_of_card,
    name,
    place,
    waits,
    without,
)
from muser.bench.cells import Cell

LABELS_SHOWN = 6  # pipelines of a step on the CPU; the rest is one line


class Entry(Protocol):
    """See `muser.bench.report.Entry`."""

    @property
    def record(self) -> Mapping[str, Any]: ...

    def linked(self, figure: str) -> str: ...


Lines = Iterator[str]
Cells = tuple[Entry, Mapping[str, Any], Mapping[str, Any]]  # with their run and cell


def versus(entries: Sequence[Entry]) -> Lines:
    """Cells with a rival."""
    cells = [found for found in _cells(entries) if "theirs" in found[2]]
    if not cells:
        return
    yield from ("", "### Against rivals", "")
    yield (
        "| when | rival | what | threads | ours, tok/s (CV) | theirs, tok/s (CV) | ours ÷ theirs"
        " | least pair | bars | choices |"
    )
    yield "|---|---|---|---:|---:|---:|---:|---:|---|---|"
    for entry, run, cell in cells:
        ratios = cell["ratios"]
        yield row(
            when(entry.record),
            named(run["sides"]["theirs"]),
            what(cell),
            ran_on(run),
            entry.linked(_speed(cell["ours"])),
            entry.linked(_speed(cell["theirs"])),
            f"**{entry.linked(format(ratios['of_medians'], '.3f'))}**",
            entry.linked(format(ratios["least"], ".3f")),
            ", ".join(_bar(bar, ratios["of_medians"]) for bar in cell["bars"]) or "none set",
            agreement(cell["agreement"]),
        )


def alone(entries: Sequence[Entry]) -> Lines:
    """Cells without a rival."""
    cells = [found for found in _cells(entries) if "theirs" not in found[2]]
    if not cells:
        return
    yield from ("", "### Muser alone", "")
    yield "| when | what | threads | tok/s (CV) | least | most |"
    yield "|---|---|---:|---:|---:|---:|"
    for entry, run, cell in cells:
        side = cell["ours"]
        timed = cell["tokens"] * cell["slots"] * 1e9
        yield row(
            when(entry.record),
            what(cell),
            ran_on(run),
            entry.linked(_speed(side)),
            entry.linked(f"{timed / side['most_ns']:.1f}"),
            entry.linked(f"{timed / side['least_ns']:.1f}"),
        )


def starts(entries: Sequence[Entry]) -> Lines:
    """Whole processes."""
    some = [entry for entry in entries if entry.record["kind"] == "start"]
    if not some:
        return
    yield from ("", "### Start: `muser run -n 1`, the whole process", "")
    yield "| when | empty shelf, s (CV) | filled shelf, s (CV) |"
    yield "|---|---:|---:|"
    for entry in some:
        for run in entry.record["runs"]:
            times = (entry.linked(_seconds(run[key])) for key in ("cold", "warm"))
            yield row(when(entry.record), *times)


def loads(entries: Sequence[Entry]) -> Lines:
    """Loads and memory."""
    some = [entry for entry in entries if entry.record["kind"] == "load"]
    if not some:
        return
    yield from ("", "### Load and memory", "")
    yield "MB of the process: resident = file-backed + anonymous; the highest until then."
    yield ""
    yield ("| when | engine | threads | load, s (CV) | after load | after a first prompt |")
    yield "|---|---|---:|---:|---:|---:|"
    for entry in some:
        for run in entry.record["runs"]:
            for side, found in run["loads"].items():
                yield row(
                    when(entry.record),
                    named(run["sides"][side]),
                    ran_on(run, side),
                    entry.linked(_seconds(found)),
                    entry.linked(_memory(found["memory"]["after"])),
                    entry.linked(_memory(found["memory"]["used"])),
                )


def kernels(entries: Sequence[Entry]) -> Lines:
    """Where the time of a step goes."""
    for entry in entries:
        if entry.record["kind"] != "kernels":
            continue
        for run in entry.record["runs"]:
            for step in run["steps"]:
                yield from _step(entry, run, step)


def _step(entry: Entry, run: Mapping[str, Any], step: Mapping[str, Any]) -> Lines:
    wall, roof = step["wall_ns"], run["roof"]["gigabytes_per_second"]
    yield from ("", f"### Where the time goes: {name(step)}, {place(run)}", "")
    yield (
        f"{when(entry.record)}. Roof: {entry.linked(f'{roof:.1f} GB/s')}, reading"
        f" {run['roof']['bytes'] / 1e6:,.1f} MB. A play {without(step)}:"
        f" {entry.linked(_micros(step['ordinary_ns']))} µs."
    )
    yield from ("", "| pipeline | entries | µs | share | GB/s | of roof | GOP/s |")
    yield "|---|---:|---:|---:|---:|---:|---:|"
    lines = by_label(step)
    shown_lines = len(lines) if is_of_card(step) else LABELS_SHOWN
    for line in lines[:shown_lines]:
        rate = line.gigabytes_per_second
        yield row(
            f"`{line.label}`",
            str(line.entries),
            entry.linked(_micros(line.ns)),
            f"{line.ns / wall:.1%}",
            f"{rate:.1f}" if line.bytes else "",
            f"{rate / roof:.0%}" if line.bytes else "",
            f"{line.gigaops_per_second:,.0f}" if line.operations else "",
        )
    rest = lines[shown_lines:]
    if rest:
        entries, ns = sum(line.entries for line in rest), sum(line.ns for line in rest)
        shown = entry.linked(_micros(ns))
        yield row(f"{len(rest)} others", str(entries), shown, f"{ns / wall:.1%}", "", "", "")
    between = {BETWEEN: gaps(step)} if is_of_card(step) else {}
    for waiting, ns in {**waits(step), **between}.items():
        yield row(waiting, "", entry.linked(_micros(ns)), f"{ns / wall:.1%}", "", "", "")
    yield row("all", "", entry.linked(_micros(wall)), "100%", "", "", "")


ALL: tuple[Callable[[Sequence[Entry]], Lines], ...] = (versus, alone, starts, loads, kernels)
"""In the order of the page."""


def row(*columns: str) -> str:
    return "| " + " | ".join(map(plain, columns)) + " |"


def plain(text: str) -> str:
    """On one line, and no column's end."""
    return " ".join(text.replace("|", "\\|").split())


def when(record: Mapping[str, Any]) -> str:
    return str(record["at"]) + ("" if record["quiet"] else " **noisy**")


def named(side: Mapping[str, Any]) -> str:
    """The name under which a side ran, and its version, which may begin with that name."""
    name, version = side.get("name", side["engine"]), side.get("version", "")
    return version if version.startswith(f"{name} ") else f"{name} {version}".strip()


def ran_on(run: Mapping[str, Any], side: str = "ours") -> str:
    """The count of threads, and the device that did the work where it is not the CPU."""
    ran = run["sides"][side]
    device, card = ran.get("settings", {}).get("device", "cpu"), card_of(ran)
    where = device if card is None else card["name"]
    return str(run["threads"]) if device == "cpu" else f"{run['threads']}, {where}"


def what(cell: Mapping[str, Any]) -> str:
    return str(Cell(cell["surface"], cell["depth"], cell["tokens"], cell["slots"]))


def agreement(found: Mapping[str, Any]) -> str:
    """How the rival's choices compare."""
    again = "" if found["repeats_itself"] else "; does not repeat itself"
    if found["exact"]:
        return f"all {found['choices']} the same{again}"
    margins = ", ".join(
        "unknown" if found[key] is None else f"{found[key]:.3f}"
        for key in ("our_margin", "their_margin")
    )
    return (
        f"{found['differences']} of {found['choices']} differ, the first at"
        f" {found['first_difference']} (margins {margins}){again}"
    )


def _cells(entries: Sequence[Entry]) -> Iterator[Cells]:
    for entry in entries:
        for run in entry.record.get("runs", ()):
            for cell in run.get("cells", ()):
                yield entry, run, cell


def _bar(bar: float, ratio: float) -> str:
    return f"{bar:g} {'met' if ratio >= bar else '**missed**'}"


def _speed(side: Mapping[str, Any]) -> str:
    return f"{side['tokens_per_second']:.1f} ({side['cv']:.1%})"


def _seconds(times: Mapping[str, Any]) -> str:
    return f"{times['median_ns'] / 1e9:.3f} ({times['cv']:.1%})"


def _micros(ns: float) -> str:
    return f"{ns / 1e3:,.1f}"


def _memory(memory: Mapping[str, int]) -> str:
    rss, file, own, peak = (memory[key] / 1e6 for key in ("rss", "file", "anonymous", "peak"))
    return f"{rss:,.1f} = {file:,.1f} + {own:,.1f}; {peak:,.1f}"
