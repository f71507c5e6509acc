"""`muser bench vs`: Muser and another engine in turns, in one run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    slot_depth: Annotated[int, number_flag("Tokens before those of --slots.")] = 0,
    batch: Annotated[
        int | None, number_flag("llama.cpp takes so many tokens at once; default its own 512.")
    ] = None,
    gpu_layers: Annotated[
        int | None, number_flag("llama.cpp has so many layers on cards; default its own choice.")
    ] = None,
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
    opens = opener(rival, path, batch, gpu_layers)
    if load:
        measured_loads(context, cells, flags, opens)
        return
    measured("vs", _cells(depths, sizes, slots, slot_depth, tokens), cells, flags, opens)


def _cells(
    depths: Sequence[int],
    sizes: Sequence[int],
    slots: Sequence[int],
    slot_depth: int,
    tokens: int,
) -> "tuple[Cell, ...]":
    batches = batch_cells(slots, slot_depth, tokens) if slots else ()
    return (*decode_cells(depths, tokens), *prefill_cells(sizes), *batches)


def opener(
    rival: str, path: Path | None, batch: int | None = None, layers: int | None = None
) -> "Opens":
    """What opens the rival. Raises `UsageError` for a name without an engine.

    A rival with another batch than its own goes by a name that says so.
    """
    from functools import partial

    from muser.bench.rivals import FlyweightSide, LlamaLibrarySide, LlamaPythonSide

    chosen: dict[str, Any] = {} if layers is None else {"layers": layers}
    if batch is not None:
        chosen |= {"batch": batch, "name": f"{rival} in batches of {batch}"}
    match rival:
        case "llama.cpp":
            if path is None:
                raise UsageError(
                    "llama.cpp is named by its library.",
                    "Add the path of libllama.so, e.g. build/bin/libllama.so.",
                )
            return partial(LlamaLibrarySide, path, **chosen)
        case "llama-cpp-python":
            return partial(LlamaPythonSide, path, **chosen)
        case "flyweight-llm" if chosen:
            raise UsageError(
                "--batch and --gpu-layers are llama.cpp's.", "Leave them out with flyweight-llm."
            )
        case "flyweight-llm":
            return partial(FlyweightSide, path)
    raise UsageError(f"{rival!r} is no engine that is known here.", f"Known: {', '.join(RIVALS)}.")
