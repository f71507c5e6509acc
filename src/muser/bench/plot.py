"""The picture of a `kernels` record: where a step's time goes, and how near the roof it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muser.bench.breakdown import by_label, card_of, is_of_card, name, place, waits
from muser.errors import UsageError

KERNEL, WAIT, ROOF = "#3b6ea5", "#c9a227", "#b03a2e"
ROW_INCHES, HEAD_INCHES, WIDTH_INCHES = 0.27, 1.1, 13.0
DOTS = 110  # an inch
NO_TRAFFIC = 1 << 16  # bytes below which an entry's rate from memory says nothing


def require_plots() -> None:
    """Raises `UsageError` where the library that draws is missing."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UsageError(
            "Drawing needs matplotlib, which is not installed.",
            "Run `pip install 'muser[plots]'`, or leave out --plot.",
        )


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Write a PNG: a row of two panels for each step and count of threads."""
    require_plots()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [(run, step) for run in record["runs"] for step in run["steps"]]
    heights = [HEAD_INCHES + ROW_INCHES * _bars_of(step) for _, step in steps]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + HEAD_INCHES / 2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(
        len(steps), 2, squeeze=False, height_ratios=heights, width_ratios=(3, 2)
    )
    for (run, step), (times, rates) in zip(steps, panels, strict=True):
        _times(times, run, step)
        _rates(rates, run, step)
    loud = "" if record["quiet"] else "; THE MACHINE WAS NOT QUIET"
    figure.suptitle(
        f"{record['model']['file']} on {_hardware(record)}, {record['at']}{loud}",
        fontsize=10,
    )
    made_by = {"Software": "muser bench kernels"}
    figure.savefig(path, dpi=DOTS, format="png", bbox_inches="tight", metadata=made_by)  # all texts


def _hardware(record: Mapping[str, Any]) -> str:
    """The card, or the processor."""
    card = card_of(record["runs"][0]["sides"]["ours"])
    return str(record["machine"]["processor"] if card is None else card["name"])


def _bars_of(step: Mapping[str, Any]) -> int:
    return len(by_label(step)) + len(waits(step))


def _times(panel: Any, run: Mapping[str, Any], step: Mapping[str, Any]) -> None:
    """Microseconds of every pipeline, then of the waits."""
    lines, waiting = by_label(step), waits(step)
    names = [f"{line.label} × {line.entries}" for line in lines] + list(waiting)
    values = [ns / 1e3 for ns in (*(line.ns for line in lines), *waiting.values())]
    colours = [KERNEL] * len(lines) + [WAIT] * len(waiting)
    _bars(panel, names, values, colours)
    wall = step["wall_ns"] / 1e3
    _numbers(panel, [f"{value:,.0f} µs, {value / wall:.1%}" for value in values], values)
    panel.set_title(f"{name(step)}, {place(run)}: {wall:,.0f} µs in all", fontsize=9, loc="left")
    panel.set_xlabel("µs" if is_of_card(step) else "µs, mean over the workers", fontsize=8)


def _rates(panel: Any, run: Mapping[str, Any], step: Mapping[str, Any]) -> None:
    """From memory, against the roof, and the products of the same pipelines."""
    lines = [line for line in by_label(step) if line.bytes >= NO_TRAFFIC]
    roof = run["roof"]["gigabytes_per_second"]
    values = [line.gigabytes_per_second for line in lines]
    _bars(panel, [line.label for line in lines], values, [KERNEL] * len(lines))
    shown = [
        f"{line.gigabytes_per_second:.1f} GB/s, {line.gigabytes_per_second / roof:.0%}"
        + (f"; {line.gigaops_per_second:,.0f} GOP/s" if line.operations else "")
        for line in lines
    ]
    _numbers(panel, shown, values)
    panel.axvline(roof, color=ROOF, linewidth=1)
    panel.set_xlim(0, max([roof, *values]) * 1.8)
    panel.set_ylim(_bars_of(step) - 0.4, -0.6)  # bars as thick as the others'
    size = run["roof"]["bytes"] / 1e6
    panel.set_title(f"roof: {roof:.1f} GB/s, reading {size:,.0f} MB", fontsize=9, color=ROOF)
    panel.set_xlabel("GB/s of weights, K and V", fontsize=8)


def _bars(panel: Any, names: list[str], values: list[float], colours: list[str]) -> None:
    panel.barh(range(len(names)), values, color=colours)
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.invert_yaxis()
    panel.tick_params(axis="x", labelsize=7)
    for edge in ("top", "right"):
        panel.spines[edge].set_visible(False)
    panel.set_xlim(min([0, *values]) * 1.1, max([*values, 1e-9]) * 1.3)


def _numbers(panel: Any, texts: list[str], values: list[float]) -> None:
    """A text behind the end of each bar; to the right of the axis for one that goes left."""
    for at, (text, value) in enumerate(zip(texts, values, strict=True)):
        panel.text(max(value, 0), at, f" {text}", va="center", fontsize=7)
