"""`muser bench load`: until a model is ready, and what it holds of memory, in fresh processes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from muser import places
from muser.bench.cells import Cell, Workload
from muser.bench.fixture import NAME, fixture_ids
from muser.bench.lock import alone
from muser.bench.look import Look, Sides, recorded
from muser.bench.ours import MuserSide, reference_side
from muser.bench.session import Opens, Say, identity_of, tokenizer_of
from muser.bench.side import Memory, Side
from muser.bench.spread import Spread, pair_ratios, speed_ratio
from muser.bench.walls import told

FIRST = Cell("prefill", 0, 16)  # the prompt behind which memory is looked at again


@dataclass(frozen=True, slots=True)
class Loaded:
    """One load in one process: nanoseconds, and memory before, after, and after a first token."""

    ns: int
    first_token_ns: int
    before: Memory
    after: Memory
    used: Memory
    identity: dict[str, Any]


def default_context(model: Path) -> int:
    """What `muser run` takes without --ctx-size: the model's own length, at most 4,096."""
    from muser.engine.loading import DEFAULT_CONTEXT
    from muser.formats import GgufFile
    from muser.models import build

    file = GgufFile.open(model)
    return min(DEFAULT_CONTEXT, build(file.metadata, file.tensors).context)


def run_load(
    model: Path,
    threads: Sequence[int],
    context: int,
    repetitions: int,
    reference: str,
    *,
    open_ours: Opens = MuserSide,
    open_theirs: Opens | None = None,
    say: Say = lambda line: None,
    look: Look | None = None,
) -> dict[str, Any]:
    """The record of loads, each in a process of its own; with a rival in turns (ABBA). Of failed
    ones too: see `record.require`."""
    opens = {"ours": open_ours} | ({} if open_theirs is None else {"theirs": open_theirs})
    with alone(places.home()):
        say(f"Reference run ({reference}).")
        text = fixture_ids(FIRST.text_ids, tokenizer_of(model))
        with reference_side(reference) as side:
            side.load(model, threads=1, context=FIRST.context + 1)
            work = Workload.make(FIRST, text, side)

        def body(known: Sides) -> dict[str, Any]:
            def load(name: str, count: int) -> Loaded:
                with closing(opens[name]()) as side:
                    return _load(side, model, count, context, work, name, known)

            runs = []
            for count in threads:
                say(f"loading, threads {count}")
                runs.append(_run(load, tuple(opens), count, repetitions))
            return {"runs": runs}

        record = recorded("load", model, body, look)
    return {**record, "fixture": NAME, "repetitions": repetitions, "context": context}


def _load(
    side: Side,
    model: Path,
    threads: int,
    context: int,
    work: Workload,
    name: str,
    known: Sides,
) -> Loaded:
    loading = side.load(model, threads=threads, context=context)
    sample = work.run(side)
    known[name] = identity = identity_of(side)
    if name == "ours":
        work.require(sample)
    return Loaded(loading.ns, sample.ns, loading.before, loading.after, side.memory(), identity)


def _run(
    load: Callable[[str, int], Loaded], names: Sequence[str], threads: int, repetitions: int
) -> dict[str, Any]:
    """One load of each side first, not counted: it fills caches on disk and of pages."""
    for name in names:
        load(name, threads)
    found: dict[str, list[Loaded]] = {name: [] for name in names}
    for name in _turns(names, repetitions):
        found[name].append(load(name, threads))
    run: dict[str, Any] = {
        "threads": threads,
        "sides": {name: loads[-1].identity for name, loads in found.items()},
        "loads": {name: _told(loads) for name, loads in found.items()},
    }
    if len(names) == 2:
        mine, others = (Spread.of([one.ns for one in found[name]]) for name in names)
        run["ratios"] = {
            "of_medians": round(speed_ratio(mine, others), 4),
            "least": round(min(pair_ratios(mine, others)), 4),
        }
    return run


def _turns(names: Sequence[str], repetitions: int) -> Iterator[str]:
    """A B, B A, A B, …"""
    for number in range(repetitions):
        yield from names if number % 2 == 0 else reversed(names)


def _told(loads: Sequence[Loaded]) -> dict[str, Any]:
    moments = ("before", "after", "used")
    return {
        **told([one.ns for one in loads]),
        "first_token": told([one.first_token_ns for one in loads]),
        "memory": {at: _median([getattr(one, at) for one in loads]) for at in moments},
    }


def _median(memories: Sequence[Memory]) -> dict[str, int]:
    """Of each field."""
    return {
        field.name: sorted(getattr(one, field.name) for one in memories)[len(memories) // 2]
        for field in fields(Memory)
    }
