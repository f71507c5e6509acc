"""What did not go as hoped, said once more: a failed run, a missed bar, a pair below 1, noise."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from muser.bench.tables import agreement, named, plain, what

MOST_CV = 0.03  # beyond it a cell is called unsteady


def misses(record: Mapping[str, Any], linked: Callable[[str], str]) -> Iterator[str]:
    """A line each, for one record; `linked` makes a figure a link to it."""
    where = f"{record['at']}, {record['model']['file']}, {record['kind']}"
    if "failed" in record:
        yield _line(f"{where}: {linked('failed')}: {record['failed']['sentence'].rstrip('.')}")
    if not record["quiet"]:
        looks = (_look(name, record["noise"][name]) for name in ("before", "during", "after"))
        yield _line(f"{where}: {linked('not quiet')}: {'; '.join(looks)}")
    for run in record.get("runs", ()):
        for cell in run.get("cells", ()):
            place = f"{where}: {what(cell)}, threads {run['threads']}"
            for said in _of_cell(run, cell, linked):
                yield _line(f"{place}: {said}")


def _look(name: str, look: Mapping[str, float]) -> str:
    return f"{name}, others took {look['others']:.2f}, a hypervisor {look['stolen']:.2f} processors"


def _of_cell(
    run: Mapping[str, Any], cell: Mapping[str, Any], linked: Callable[[str], str]
) -> Iterator[str]:
    for side in ("ours", "theirs"):
        if side in cell and cell[side]["cv"] > MOST_CV:
            yield f"unsteady: {side} has a CV of {linked(format(cell[side]['cv'], '.1%'))}"
    if "ratios" not in cell:
        return
    ratio, each = cell["ratios"]["of_medians"], cell["ratios"]["each"]
    against = f"against {named(run['sides']['theirs'])}"
    for bar in cell["bars"]:
        if ratio < bar:
            yield f"the bar {bar:g} is missed {against}: {linked(format(ratio, '.3f'))}"
    below = sum(one < 1 for one in each)
    if below:
        least = linked(format(min(each), ".3f"))
        yield f"{below} of {len(each)} pairs are below 1 {against}, the least {least}"
    if not cell["agreement"]["exact"]:
        yield f"`exact: false` {against}: {agreement(cell['agreement'])}"


def _line(text: str) -> str:
    return f"* {plain(text)}."
