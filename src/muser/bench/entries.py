"""`muser bench kernels`: a step's entries, their traffic, and the roof over them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muser import places
from muser.bench.fixture import NAME, fixture_ids
from muser.bench.identity import build_identity
from muser.bench.lock import alone
from muser.bench.look import Look, Sides, recorded
from muser.bench.ours import reference_side
from muser.bench.session import Say, tokenizer_of
from muser.bench.spread import Spread
from muser.bench.timeline import Timeline, timeline
from muser.bench.traffic import cache_bytes, products, weight_bytes
from muser.devices import Limits, Step
from muser.devices.cpu import CpuDevice, CpuRunner
from muser.devices.cpu.roof import reading_times
from muser.devices.cpu.tape import Stamps, Tape
from muser.errors import WrongTokens
from muser.formats import GgufFile
from muser.models import build
from muser.weights import Weights

ROOF_PLAYS = 31


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step of `rows` rows behind `depth` tokens: one token, or a chunk of a prompt."""

    depth: int
    rows: int

    def __str__(self) -> str:
        return f"{self.rows} {'row' if self.rows == 1 else 'rows'} at depth {self.depth}"


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """`plays` timed plays of each step with each count of threads."""

    model: Path
    steps: tuple[StepPlan, ...]
    threads: tuple[int, ...]
    reference: str
    plays: int = 60


@dataclass(frozen=True, slots=True)
class Known:
    """A step, its text, and the digest of the last row of logits by the reference."""

    plan: StepPlan
    ids: tuple[int, ...]
    logits_sha256: str

    def require(self, logits: NDArray[np.float32]) -> None:
        """Raises `WrongTokens` for other bits."""
        if hashlib.sha256(logits[-1].astype("<f4").tobytes()).hexdigest() != self.logits_sha256:
            raise WrongTokens(
                f"{self.plan}: the last logits are not the reference's bits.",
                "No time is told for them; this is a defect of Muser, please report it.",
            )

    def step(self) -> Step:
        """The rows, the last one's logits wanted."""
        rows = self.plan.rows
        return Step(
            tokens=np.asarray(self.ids[self.plan.depth :], np.int32),
            positions=np.arange(self.plan.depth, len(self.ids), dtype=np.int32),
            slots=np.zeros(rows, np.int32),
            outputs=np.array([rows - 1], np.int32),
        )


def run_kernels(
    plan: KernelPlan, *, say: Say = lambda line: None, look: Look | None = None
) -> dict[str, Any]:
    """The record of where the steps' time goes; fails and raises as `muser.bench.run_plan` does."""
    with alone(places.home()):
        say(f"Reference runs ({plan.reference}).")
        known = _known(plan)

        def body(sides: Sides) -> dict[str, Any]:
            return {"runs": [_run(plan, known, threads, sides, say) for threads in plan.threads]}

        record = recorded("kernels", plan.model, body, look)
    return {**record, "fixture": NAME, "repetitions": plan.plays}


def _known(plan: KernelPlan) -> tuple[Known, ...]:
    longest = max(step.depth + step.rows for step in plan.steps)
    text = fixture_ids(longest, tokenizer_of(plan.model))
    with reference_side(plan.reference) as side:
        side.load(plan.model, threads=max(plan.threads), context=longest)
        found = []
        for step in plan.steps:
            ids = text[: step.depth + step.rows]
            found.append(Known(step, ids, side.greedy(ids, 1)[1]))
        return tuple(found)


def _run(
    plan: KernelPlan, known: Sequence[Known], threads: int, sides: Sides, say: Say
) -> dict[str, Any]:
    device = CpuDevice(threads)
    file = GgufFile.open(plan.model)
    graph = build(file.metadata, file.tensors)
    weights = Weights(file, graph, device.memory)
    context = max(len(one.ids) for one in known)
    chunk = max(device.chunk, *(one.plan.rows for one in known))
    runner = device.load(graph, weights, Limits(context, 1, min(chunk, context)))
    libraries = dict(runner.libraries)
    ours = {**build_identity(), "libraries": libraries, "instruction_sets": sorted(libraries)}
    sides["ours"] = ours
    try:
        size = weight_bytes(weights, _read_whole(runner))
        buffer = np.full(size, 1, np.uint8)
        roof = [*reading_times(device.library, threads, buffer, ROOF_PLAYS)]
        steps = []
        for one in known:
            say(f"{one.plan}, {threads} threads")
            steps.append(_step(runner, weights, one, plan.plays))
        roof += reading_times(device.library, threads, buffer, ROOF_PLAYS)
    finally:
        runner.close()
    return {
        "threads": threads,
        "sides": {"ours": ours},
        "roof": _roof(size, roof),
        "steps": steps,
    }


def _read_whole(runner: CpuRunner) -> tuple[str, ...]:
    """The names of the tensors that one token reads, in order, each once."""
    names = (name for move in runner.tapes["1"].moves for name in move.tensors)
    return tuple(dict.fromkeys(names))


def _roof(size: int, times: Sequence[int]) -> dict[str, Any]:
    """Reading a buffer of that size: the median of all times, and its bytes in a nanosecond."""
    spread = Spread.of(times)
    return {
        "bytes": size,
        "plays": len(times),
        "median_ns": spread.median,
        "least_ns": spread.least,
        "cv": round(spread.cv, 6),
        "gigabytes_per_second": round(size / spread.median, 3),
    }


def _step(runner: CpuRunner, weights: Weights, known: Known, plays: int) -> dict[str, Any]:
    """Ordinary and timed plays in turns, all of them the reference's bits."""
    _fill(runner, known)
    step = known.step()
    ordinary, stamps = list[int](), list[Stamps]()
    for play in range(plays + 1):  # the first of each is the warm-up
        start = perf_counter_ns()
        logits = runner.forward(step)
        took = perf_counter_ns() - start
        known.require(logits)
        logits, tape, stamped = runner.forward_timed(step)
        known.require(logits)
        if play:
            ordinary.append(took)
            stamps.append(stamped)
    found = timeline(
        [one.begin for one in stamps],
        [one.end for one in stamps],
        np.stack([one.entries for one in stamps]),
        [bool(entry.wait) for entry in tape.entries],
    )
    return {
        "depth": known.plan.depth,
        "rows": known.plan.rows,
        "ordinary_ns": Spread.of(ordinary).median,
        **_told(found),
        "entries": _entries(runner, weights, tape, found, step),
    }


def _fill(runner: CpuRunner, known: Known) -> None:
    """Put the tokens before the step into the cache."""
    chunk = runner.limits.chunk
    for first in range(0, known.plan.depth, chunk):
        part = np.asarray(known.ids[first : min(first + chunk, known.plan.depth)], np.int32)
        positions = np.arange(first, first + len(part), dtype=np.int32)
        runner.forward(Step(part, positions, np.zeros_like(part), np.zeros(0, np.int32)))


def _told(found: Timeline) -> dict[str, float]:
    times = {
        "wall_ns": found.wall,
        "kernels_ns": found.kernels,
        "wake_ns": found.wake,
        "uneven_ns": found.uneven,
        "barriers_ns": found.barriers,
    }
    return {name: round(value, 1) for name, value in times.items()}


def _entries(
    runner: CpuRunner, weights: Weights, tape: Tape, found: Timeline, step: Step
) -> dict[str, list[Any]]:
    """Columns: one item an entry, but `labels`, which `label` counts into.

    Bytes are those of weights and of K and V rows alone.
    """
    labels = list(dict.fromkeys(tape.labels))
    return {
        "labels": labels,
        "label": [labels.index(label) for label in tape.labels],
        "node": list(tape.nodes),
        "ns": [round(float(ns), 1) for ns in found.entries],
        "gap_ns": [round(float(ns), 1) for ns in found.gaps],
        "bytes": [
            weight_bytes(weights, move.tensors) + cache_bytes(runner.caches, move, step)
            for move in tape.moves
        ],
        "operations": [products(weights, move, step) for move in tape.moves],
    }
