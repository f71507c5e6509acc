"""A step on the CPU: its entries, their traffic, and the roof over them."""

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from muser.bench.identity import build_identity
from muser.bench.look import Sides
from muser.bench.session import Say
from muser.bench.spread import Spread
from muser.bench.steps import KernelPlan, Known, roof_of
from muser.bench.timeline import Timeline, timeline
from muser.bench.traffic import cache_bytes, products, weight_bytes
from muser.devices import Step
from muser.devices.cpu import CpuDevice, CpuRunner
from muser.devices.cpu.roof import reading_times
from muser.devices.cpu.tape import Stamps, Tape
from muser.formats import GgufFile
from muser.models import build
from muser.weights import Weights

ROOF_PLAYS = 31


def timed_run(
    plan: KernelPlan, known: Sequence[Known], threads: int, sides: Sides, say: Say
) -> dict[str, Any]:
    """All steps with one count of threads."""
    device = CpuDevice(threads)
    file = GgufFile.open(plan.model)
    graph = build(file.metadata, file.tensors)
    weights = Weights(file, graph, device.memory)
    runner = device.load(graph, weights, plan.limits(device.chunk))
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
        "roof": roof_of(size, roof),
        "steps": steps,
    }


def _read_whole(runner: CpuRunner) -> tuple[str, ...]:
    """The names of the tensors that one token reads, in order, each once."""
    names = (name for move in runner.tapes["1"].moves for name in move.tensors)
    return tuple(dict.fromkeys(names))


def _step(runner: CpuRunner, weights: Weights, known: Known, plays: int) -> dict[str, Any]:
    """Ordinary and timed plays in turns, all of them the reference's bits."""
    known.fill(runner)
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
        **known.plan.told(),
        "ordinary_ns": Spread.of(ordinary).median,
        **_told(found),
        "entries": _entries(runner, weights, tape, found, step),
    }


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
