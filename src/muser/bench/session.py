"""A run of cells: references first, then both sides, all under one lock."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from muser import places
from muser.bench.cells import Cell, Workload, measure
from muser.bench.fixture import NAME, fixture_ids
from muser.bench.lock import alone
from muser.bench.look import Look, Sides, recorded
from muser.bench.ours import MuserSide, reference_side
from muser.bench.side import Side
from muser.errors import UsageError

Say = Callable[[str], None]
Opens = Callable[[], Side]
IN_PLACE = ("c", "avx2")  # sets that read weights as they lie in the file


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures: every cell with every count of threads.

    `reference` is the instruction set that computes what has to come out; see `reference_isa`.
    """

    kind: str
    model: Path
    cells: tuple[Cell, ...]
    threads: tuple[int, ...]
    reference: str
    repetitions: int = 5


def run_plan(
    plan: Plan,
    *,
    open_ours: Opens = MuserSide,
    open_theirs: Opens | None = None,
    say: Say = lambda line: None,
    look: Look | None = None,
) -> dict[str, Any]:
    """The record of a run, the caller writes it; of a failed one too: see `record.require`.

    It fails with `WrongTokens` where one of our runs is not the reference's, with `DeviceError`
    for a side that refuses. Raises `BusyError` where another measurement holds the lock, and what
    the reference run raises.
    """
    with alone(places.home()):
        say(f"Reference runs ({plan.reference}).")
        works, reference = _references(plan)

        def body(known: Sides) -> dict[str, Any]:
            with closing(open_ours()) as ours, _maybe(open_theirs) as theirs:
                sides = {"ours": ours} if theirs is None else {"ours": ours, "theirs": theirs}
                return {"runs": list(_runs(plan, works, sides, known, say))}

        record = recorded(plan.kind, plan.model, body, look)
    return {**record, "fixture": NAME, "reference": reference, "repetitions": plan.repetitions}


def reference_isa(wanted: str | None = None) -> str:
    """The set of the reference run: `wanted`, else the best one that shares no packed weights with
    the others and is not the one that is measured; the same where the machine has one only.

    Raises `UsageError` for a set that would be compared with itself, though there are others.
    """
    import os

    from muser.kernels import Shelf, choose_library, supported_isas

    shelf = Shelf(places.libraries())
    supported = supported_isas(choose_library(shelf, "c"))
    measured = os.environ.get("MUSER_ISA") or supported[-1]
    if wanted == measured and len(supported) > 1:
        rest = " or ".join(isa for isa in supported if isa != measured)
        raise UsageError(
            f"--reference {wanted} is the set that is measured: it would only be compared with"
            " itself.",
            f"Choose {rest}, or leave the flag out.",
        )
    others = [isa for isa in supported if isa in IN_PLACE and isa != measured]
    return wanted or (others or [measured])[-1]


def tokenizer_of(model: Path) -> Callable[[str], list[int]]:
    """How a model's file says that text becomes ids."""
    from muser.formats import GgufFile
    from muser.text import Tokenizer

    return Tokenizer.from_metadata(GgufFile.open(model).metadata).encode


def _maybe(opens: Opens | None) -> Any:
    return nullcontext(None) if opens is None else closing(opens())


def _references(plan: Plan) -> tuple[tuple[Workload, ...], dict[str, Any]]:
    """Every cell's ids, computed by one reference process that ends before anything is timed."""
    most = max(cell.text_ids for cell in plan.cells)
    text = fixture_ids(most, tokenizer_of(plan.model))
    context = max(cell.context for cell in plan.cells) + 1
    with reference_side(plan.reference) as side:
        side.load(plan.model, threads=max(plan.threads), context=context)
        works = tuple(Workload.make(cell, text, side) for cell in plan.cells)
        identity = side.identity()
    return works, {name: identity[name] for name in ("libraries", "build", "settings")}


def identity_of(side: Side) -> dict[str, Any]:
    """What a side says it is, and the name that it was given."""
    return {**side.identity(), "name": side.name}


def _runs(
    plan: Plan, works: Sequence[Workload], sides: Mapping[str, Side], known: Sides, say: Say
) -> Iterator[dict[str, Any]]:
    """One for each count of threads and of slots; a side loads the model anew for each."""
    for threads in plan.threads:
        for slots, some in groupby(works, lambda work: work.cell.slots):
            group = tuple(some)
            context = max(work.cell.context for work in group) + 1
            loading = {
                name: asdict(side.load(plan.model, threads=threads, context=context, slots=slots))
                for name, side in sides.items()
            }
            known.update({name: identity_of(side) for name, side in sides.items()})
            cells = []
            for work in group:
                say(f"{work.cell}, {threads} threads")
                cells.append(measure(work, sides["ours"], sides.get("theirs"), plan.repetitions))
            yield {
                "threads": threads,
                "slots": slots,
                "sides": {name: identity_of(side) for name, side in sides.items()},
                "loading": loading,
                "memory": {name: asdict(side.memory()) for name, side in sides.items()},
                "cells": cells,
            }
