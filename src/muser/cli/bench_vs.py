"""`muser bench vs`: Muser and another engine in turns, in one run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from muser.cli.bench_cells import batch_cells, decode_cells, measured, prefill_cells
from muser.cli.bench_flags import CellFlags, MeasureFlags, list_flag, number_flag
from muser.cli.bench_starts import measured_loads
from muser.errors import UsageError

if TYPE_CHECKING:
    from muser.bench import Cell
    from muser.bench.session import Opens

RIVALS = ("llama.cpp", "llama-cpp-python", "flyweight-llm")


def vs(
    rival: Annotated[str, Parameter(help=f"{', '.join(RIVALS)}.")],
    path: Annotated[
        Path | None,
        Parameter(help="llama.cpp: its libllama.so; the others: the Python that has them."),
    ] = None,
    /,
    *,
    depths: Annotated[tuple[int, ...], list_flag("Decode behind so many tokens.")] = (0, 512),
    sizes: Annotated[tuple[int, ...], list_flag("Prompts of so many tokens.")] = (512,),
    slots: Annotated[tuple[int, ...], list_flag("So many sequences side by side.")] = (),
    tokens: Annotated[int, number_flag("Timed tokens of each.", "--tokens", "-n")] = 64,
    load: Annotated[
        bool, Parameter(help="Compare loads and memory instead.", negative=(), show_default=False)
    ] = False,
    context: Annotated[
        int | None, number_flag("With --load: tokens that fit.", "--ctx-size", "-c")
    ] = None,
    cells: CellFlags | None = None,
    flags: MeasureFlags | None = None,
) -> None:
    """Compare with another engine, in turns: same ids, same steps, each in its own process."""
    opens = opener(rival, path)
    if load:
        measured_loads(context, cells, flags, opens)
        return
    measured("vs", _cells(depths, sizes, slots, tokens), cells, flags, opens)


def _cells(
    depths: Sequence[int], sizes: Sequence[int], slots: Sequence[int], tokens: int
) -> "tuple[Cell, ...]":
    batches = batch_cells(slots, 0, tokens) if slots else ()
    return (*decode_cells(depths, tokens), *prefill_cells(sizes), *batches)


def opener(rival: str, path: Path | None) -> "Opens":
    """What opens the rival. Raises `UsageError` for a name without an engine."""
    from functools import partial

    from muser.bench.rivals import FlyweightSide, LlamaLibrarySide, LlamaPythonSide

    match rival:
        case "llama.cpp":
            if path is None:
                raise UsageError(
                    "llama.cpp is named by its library.",
                    "Add the path of libllama.so, e.g. build/bin/libllama.so.",
                )
            return partial(LlamaLibrarySide, path)
        case "llama-cpp-python":
            return partial(LlamaPythonSide, path)
        case "flyweight-llm":
            return partial(FlyweightSide, path)
    raise UsageError(f"{rival!r} is no engine that is known here.", f"Known: {', '.join(RIVALS)}.")
