"""`muser bench start | load`: how long until the first token, and what memory it takes."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from muser.cli.bench_flags import (
    CellFlags,
    MeasureFlags,
    kept,
    number_flag,
    say,
    text_flag,
    threads_of,
)
from muser.cli.progress import obtained

if TYPE_CHECKING:
    from muser.bench.session import Opens


def start(
    *,
    reference: Annotated[str | None, text_flag("Instruction set of the reference run.")] = None,
    flags: MeasureFlags | None = None,
) -> None:
    """Time whole processes of `muser run -n 1`: with an empty shelf, and with a filled one."""
    flags = flags or MeasureFlags()
    flags.check()
    model = obtained(flags.model)

    from muser.bench import reference_isa
    from muser.bench.walls import run_start

    record = run_start(model, flags.repetitions, reference_isa(reference), say=say)
    kept(record, flags, list(start_table(record)))


def load(
    *,
    context: Annotated[
        int | None,
        number_flag("Tokens that fit; default the model's, at most 4096.", "--ctx-size", "-c"),
    ] = None,
    cells: CellFlags | None = None,
    flags: MeasureFlags | None = None,
) -> None:
    """Time loads in fresh processes, and say what is resident then."""
    measured_loads(context, cells, flags)


def measured_loads(
    context: int | None,
    cells: CellFlags | None,
    flags: MeasureFlags | None,
    open_theirs: "Opens | None" = None,
) -> None:
    """Measure, write the record, print it."""
    cells, flags = cells or CellFlags(), flags or MeasureFlags()
    flags.check()
    threads = threads_of(cells)
    model = obtained(flags.model)

    from functools import partial

    from muser.bench import reference_isa
    from muser.bench.loads import default_context, run_load
    from muser.bench.ours import MuserSide

    record = run_load(
        model,
        threads,
        context or default_context(model),
        flags.repetitions,
        reference_isa(cells.reference),
        open_ours=partial(MuserSide, device=cells.device),
        open_theirs=open_theirs,
        say=say,
    )
    kept(record, flags, list(load_table(record)))


def start_table(record: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'muser run -n 1, the process':32} {'s':>8} {'least':>8} {'most':>8} {'CV':>7}"
    for run in record["runs"]:
        yield _seconds("empty shelf", run["cold"])
        yield _seconds("filled shelf", run["warm"])


def load_table(record: Mapping[str, Any]) -> Iterator[str]:
    for run in record["runs"]:
        yield (
            f"{'threads ' + str(run['threads']):32} {'s':>8} {'least':>8} {'most':>8} {'CV':>7}"
            f"   {'resident MB':>11} {'of files':>9} {'own':>7} {'highest':>8}"
        )
        for name, found in run["loads"].items():
            side = run["sides"][name]["name"]
            yield _seconds(f"{side}: load", found) + _megabytes(found["memory"]["after"])
            first = _seconds("  a first prompt of 16", found["first_token"])
            yield first + _megabytes(found["memory"]["used"])
        if "ratios" in run:
            yield f"  ours ÷ theirs {run['ratios']['of_medians']:.3f}"


def _seconds(name: str, times: Mapping[str, Any]) -> str:
    shown = " ".join(f"{times[key] / 1e9:8.3f}" for key in ("median_ns", "least_ns", "most_ns"))
    return f"{name:32} {shown} {times['cv']:7.2%}"


def _megabytes(memory: Mapping[str, int]) -> str:
    rss, file, own, peak = (memory[key] / 1e6 for key in ("rss", "file", "anonymous", "peak"))
    return f"   {rss:11.1f} {file:9.1f} {own:7.1f} {peak:8.1f}"
