"""`muser bench kernels`: what each entry of a step takes, and how near memory's roof it is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

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

DEVICES = ("cpu", "cuda")
MOST_SLOTS = 64  # rows of logits that a card makes at once


def kernels(
    *,
    depth: Annotated[int, number_flag("Tokens in the cache before the one that is timed.")] = 0,
    chunk: Annotated[int, number_flag("Tokens of a timed piece of a prompt; 0: none.")] = 256,
    slots: Annotated[
        tuple[int, ...], list_flag("Sequences whose next tokens are timed together, e.g. 1,4,16.")
    ] = (1,),
    plays: Annotated[int, number_flag("Plays of each step.")] = 60,
    plot: Annotated[
        Path | None, Parameter(help="Draw it into this PNG file (needs the extra `plots`).")
    ] = None,
    cells: CellFlags | None = None,
    flags: MeasureFlags | None = None,
) -> None:
    """Time every entry of one decoded token, and of a piece of a prompt."""
    cells, flags = cells or CellFlags(), flags or MeasureFlags()
    if plays < 1 or chunk < 0 or min(slots) < 1:
        raise UsageError(
            f"{plays} plays of {min(slots)} sequences and of {chunk} tokens are nothing.",
            "Ask for more.",
        )
    _timed_on(cells.device, max(slots))
    from muser.bench.plot import draw, require_plots

    if plot is not None:
        require_plots()
    threads = threads_of(cells)
    model = obtained(flags.model)

    from muser.bench import reference_isa
    from muser.bench.kernels import run_kernels
    from muser.bench.steps import KernelPlan, StepPlan

    tokens = tuple(StepPlan(depth, 1, count) for count in slots)
    steps = (*tokens, *((StepPlan(0, chunk),) if chunk else ()))
    reference = reference_isa(cells.reference)
    plan = KernelPlan(model, steps, threads, reference, plays, cells.device)
    record = run_kernels(plan, say=say)
    try:
        kept(record, flags, list(table(record)))
    finally:
        if plot is not None and "failed" not in record:
            draw(record, plot)


def _timed_on(device: str, slots: int) -> None:
    """Raises `UsageError` where the parts of such a step cannot be timed."""
    if device not in DEVICES:
        raise UsageError(
            f"The parts of a step are timed on {' or '.join(DEVICES)}, not on {device}.",
            f"Choose --device {' or --device '.join(DEVICES)}.",
        )
    if slots > MOST_SLOTS:
        raise UsageError(
            f"{slots} sequences are more than are timed together.",
            f"Ask for at most {MOST_SLOTS}.",
        )


def table(record: Mapping[str, Any]) -> Iterator[str]:
    """A block of lines for each step and count of threads."""
    from muser.bench.breakdown import block, place

    for run in record["runs"]:
        roof = run["roof"]
        yield (
            f"roof, {place(run)}: {roof['gigabytes_per_second']:.1f} GB/s, reading"
            f" {roof['bytes'] / 1e6:.1f} MB"
        )
        for step in run["steps"]:
            yield ""
            yield from block(run, step)
        yield ""
