"""`muser bench kernels`: what each entry of a step takes, and how near memory's roof it is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from muser.cli.bench_flags import (
    CellFlags,
    MeasureFlags,
    kept,
    number_flag,
    say,
    threads_of,
)
from muser.cli.progress import obtained
from muser.errors import UsageError

LEAST_SHOWN = 1 << 16  # bytes from which on a rate is worth a column


def kernels(
    *,
    depth: Annotated[int, number_flag("Tokens in the cache before the one that is timed.")] = 0,
    chunk: Annotated[int, number_flag("Tokens of a timed piece of a prompt; 0: none.")] = 256,
    plays: Annotated[int, number_flag("Plays of each step.")] = 60,
    plot: Annotated[
        Path | None, Parameter(help="Draw it into this PNG file (needs the extra `plots`).")
    ] = None,
    cells: CellFlags | None = None,
    flags: MeasureFlags | None = None,
) -> None:
    """Time every entry of one decoded token, and of a piece of a prompt."""
    cells, flags = cells or CellFlags(), flags or MeasureFlags()
    if plays < 1 or chunk < 0:
        raise UsageError(f"{plays} plays of {chunk} tokens are nothing.", "Ask for more.")
    if cells.device != "cpu":
        raise UsageError(
            f"The entries of a step are timed on the CPU alone, not on {cells.device}.",
            "Leave out --device.",
        )
    from muser.bench.plot import draw, require_plots

    if plot is not None:
        require_plots()
    threads = threads_of(cells)
    model = obtained(flags.model)

    from muser.bench import reference_isa
    from muser.bench.entries import KernelPlan, StepPlan, run_kernels

    steps = (StepPlan(depth, 1), *((StepPlan(0, chunk),) if chunk else ()))
    reference = reference_isa(cells.reference)
    record = run_kernels(KernelPlan(model, steps, threads, reference, plays), say=say)
    try:
        kept(record, flags, list(table(record)))
    finally:
        if plot is not None and "failed" not in record:
            draw(record, plot)


def table(record: Mapping[str, Any]) -> Iterator[str]:
    """A block of lines for each step and count of threads."""
    for run in record["runs"]:
        roof = run["roof"]
        yield (
            f"roof, threads {run['threads']}: {roof['gigabytes_per_second']:.1f} GB/s, reading"
            f" {roof['bytes'] / 1e6:.1f} MB"
        )
        for step in run["steps"]:
            yield ""
            yield from _block(run, step)
        yield ""


def _block(run: Mapping[str, Any], step: Mapping[str, Any]) -> Iterator[str]:
    from muser.bench.breakdown import WAITS, by_label, name

    wall, roof = step["wall_ns"], run["roof"]["gigabytes_per_second"]
    head = f"{'entries':>7} {'µs':>10} {'share':>6} {'MB':>8} {'GB/s':>7} {'of roof':>7}"
    title = f"{name(step)}, threads {run['threads']}"
    yield f"{title:44} {head} {'GOP/s':>7}"
    for line in by_label(step):
        rate, rest = "", ""
        if line.bytes >= LEAST_SHOWN:
            speed = line.gigabytes_per_second
            rate = f" {line.bytes / 1e6:8.2f} {speed:7.1f} {speed / roof:7.0%}"
        if line.operations:
            rest = f" {line.gigaops_per_second:7.0f}"
        times = f"{line.entries:7} {line.ns / 1e3:10.1f} {line.ns / wall:6.1%}"
        yield f"{line.label:44} {times}{rate:25}{rest}".rstrip()
    for key, what in WAITS.items():
        yield f"{what:44} {'':7} {step[key] / 1e3:10.1f} {step[key] / wall:6.1%}"
    yield (
        f"{'all of it, on the wall':44} {'':7} {wall / 1e3:10.1f} {1:6.0%}"
        f"   without the stamps {step['ordinary_ns'] / 1e3:.1f}"
    )
