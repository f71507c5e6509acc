"""`muser bench decode | prefill | batch`: Muser alone, against its own reference run."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from muser.cli.bench_flags import (
    CellFlags,
    MeasureFlags,
    kept,
    list_flag,
    number_flag,
    say,
    threads_of,
)
from muser.cli.progress import obtained
from muser.errors import UsageError

if TYPE_CHECKING:
    from muser.bench import Cell
    from muser.bench.session import Opens


def decode(
    *,
    depths: Annotated[
        tuple[int, ...], list_flag("Tokens in the cache before the clock starts.")
    ] = (0, 512),
    tokens: Annotated[int, number_flag("Tokens that are timed.", "--tokens", "-n")] = 64,
    cells: CellFlags | None = None,
    flags: MeasureFlags | None = None,
) -> None:
    """Time single tokens, one after another."""
    measured("decode", decode_cells(depths, tokens), cells, flags)


def prefill(
    *,
    sizes: Annotated[tuple[int, ...], list_flag("Tokens of a prompt.")] = (128, 512),
    cells: CellFlags | None = None,
    flags: MeasureFlags | None = None,
) -> None:
    """Time prompts."""
    measured("prefill", prefill_cells(sizes), cells, flags)


def batch(
    *,
    slots: Annotated[tuple[int, ...], list_flag("Sequences side by side.")] = (1, 2, 4, 8, 16),
    depth: Annotated[int, number_flag("Tokens before them in each.")] = 0,
    tokens: Annotated[int, number_flag("Timed tokens of each.", "--tokens", "-n")] = 32,
    cells: CellFlags | None = None,
    flags: MeasureFlags | None = None,
) -> None:
    """Time several sequences that go on together; the speed is that of all of them."""
    measured("batch", batch_cells(slots, depth, tokens), cells, flags)


def decode_cells(depths: Sequence[int], tokens: int) -> "tuple[Cell, ...]":
    from muser.bench import Cell

    _positive(tokens, "--tokens")
    return tuple(Cell("decode", depth, tokens) for depth in depths)


def prefill_cells(sizes: Sequence[int]) -> "tuple[Cell, ...]":
    from muser.bench import Cell

    _positive(min(sizes), "--sizes")
    return tuple(Cell("prefill", 0, size) for size in sizes)


def batch_cells(slots: Sequence[int], depth: int, tokens: int) -> "tuple[Cell, ...]":
    from muser.bench import Cell

    _positive(min(slots), "--slots")
    _positive(tokens, "--tokens")
    return tuple(Cell("batch", depth, tokens, count) for count in slots)


def measured(
    kind: str,
    cells: "tuple[Cell, ...]",
    chosen: CellFlags | None,
    flags: MeasureFlags | None,
    open_theirs: "Opens | None" = None,
) -> None:
    """Run a plan, write its record, print it."""
    chosen, flags = chosen or CellFlags(), flags or MeasureFlags()
    flags.check()
    threads = threads_of(chosen)
    model = obtained(flags.model)

    from functools import partial

    from muser.bench import Plan, reference_isa, run_plan
    from muser.bench.ours import MuserSide

    reference = reference_isa(chosen.reference)
    plan = Plan(kind, model, cells, threads, reference, flags.repetitions)
    ours = partial(MuserSide, device=chosen.device)
    record = run_plan(plan, open_ours=ours, open_theirs=open_theirs, say=say)
    kept(record, flags, table(record))


def table(record: Mapping[str, Any]) -> list[str]:
    """A line for each cell and side, and the ratio where there are two."""
    lines = [f"{'':32} {'threads':>7} {'tok/s':>10} {'least':>10} {'most':>10} {'CV':>7}"]
    for run in record["runs"]:
        for cell in run["cells"]:
            name = title(cell)
            for side in ("ours", "theirs"):
                if side in cell:
                    lines.append(_line(name, run["threads"], cell, cell[side]))
                    name = "  " + run["sides"].get("theirs", {"name": ""})["name"]
            if "ratios" in cell:
                lines.append(_ratio(cell))
    return lines


def title(cell: Mapping[str, Any]) -> str:
    """What a cell of a record timed."""
    from muser.bench import Cell

    return str(Cell(cell["surface"], cell["depth"], cell["tokens"], cell["slots"]))


def _line(name: str, threads: int, cell: Mapping[str, Any], side: Mapping[str, Any]) -> str:
    timed = cell["tokens"] * cell["slots"] * 1e9
    speeds = (side["tokens_per_second"], timed / side["most_ns"], timed / side["least_ns"])
    shown = " ".join(f"{speed:10.1f}" for speed in speeds)
    return f"{name:32} {threads:7} {shown} {side['cv']:7.2%}"


def _ratio(cell: Mapping[str, Any]) -> str:
    ratios, agreement = cell["ratios"], cell["agreement"]
    same = "same choices"
    if not agreement["exact"]:
        same = f"{agreement['differences']} of {agreement['choices']} choices differ"
    return f"  ours ÷ theirs {ratios['of_medians']:.3f} (least pair {ratios['least']:.3f}); {same}"


def _positive(number: int, flag: str) -> None:
    if number < 1:
        raise UsageError(f"{flag} is {number}.", "Ask for at least 1.")
