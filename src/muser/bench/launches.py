"""A step on a card: what each launch takes, its traffic, and the roof over it."""

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muser.bench.account import Account, account
from muser.bench.identity import build_identity, card_identity
from muser.bench.look import Sides
from muser.bench.session import Say
from muser.bench.spread import Spread
from muser.bench.steps import KernelPlan, Known, roof_of
from muser.bench.traffic import launch_bytes, launch_products, token_bytes
from muser.devices import Step
from muser.devices.cuda import CudaDevice, CudaRunner
from muser.devices.cuda.tape import Launch
from muser.devices.cuda.timing import Piece, Timed
from muser.devices.steps import first_tokens
from muser.errors import WrongTokens
from muser.formats import GgufFile
from muser.models import build
from muser.weights import Weights

CUDA = CudaDevice.name
ROOF_PLAYS = 31
MOST_ROOF = 4 << 30  # bytes of the buffer that is read: far more than any cache holds
WHOLE = 256  # the buffer is a multiple of so many bytes
Requires = Callable[[NDArray[np.float32]], None]
"""Raises for logits that are not those that have to come out."""


def timed_run(plan: KernelPlan, known: Sequence[Known], sides: Sides, say: Say) -> dict[str, Any]:
    """All steps on the first card.

    Raises `LimitError` for a model that is too large for it, `DeviceLost` where it is lost.
    """
    device = CudaDevice()
    library = device.library
    sides["ours"] = ours = {
        **build_identity(),
        "libraries": {library.name: library.sha256},
        "instruction_sets": [library.name],
        "settings": {"device": CUDA, "card": card_identity(device.facts, library.compiler)},
    }
    file = GgufFile.open(plan.model)
    graph = build(file.metadata, file.tensors)
    weights = Weights(file, graph, device.memory, device.looks)
    runner = device.load(graph, weights, plan.limits(device.chunk))
    try:
        size = roof_bytes(runner, weights)
        roof, steps = runner.reading_times(size, ROOF_PLAYS), []
        for one in known:
            say(f"{one.plan}, {device.facts.name}")
            one.fill(runner)
            found = timed_step(runner, weights, one.step(), plan.plays, one.require)
            steps.append({**one.plan.told(), **found})
        roof += runner.reading_times(size, ROOF_PLAYS)
    finally:
        runner.close()
    return {"sides": {"ours": ours}, "roof": roof_of(size, [*map(round, roof)]), "steps": steps}


def roof_bytes(runner: CudaRunner, weights: Weights) -> int:
    """How large a buffer is read for the roof: what one token reads, but never more than
    `MOST_ROOF` nor than half of the memory that is free.
    """
    size = min(token_bytes(weights), MOST_ROOF, runner.free_bytes() // 2)
    return max(WHOLE, size // WHOLE * WHOLE)


def timed_step(
    runner: CudaRunner,
    weights: Weights,
    step: Step,
    plays: int,
    require: Requires = lambda logits: None,
) -> dict[str, Any]:
    """Where a step's time goes, for a record: what `table`, `by_label` and `draw` take.

    By the host's clock and in the three ways of the card's, in turns, `plays` times behind a
    warm-up; `require` judges the logits of each. Raises `WrongTokens` for another choice.
    """
    empty = runner.empty_launch(plays)
    ordinary, rounds = list[int](), list[Timed]()
    for play in range(plays + 1):
        start = perf_counter_ns()
        chosen = runner.choose(step)
        took = perf_counter_ns() - start
        timed = runner.timed(step)
        for logits in timed.logits:
            require(logits)
            if chosen.tolist() != first_tokens(logits).tolist():
                raise WrongTokens(
                    f"The card chose {chosen.tolist()}, its logits say otherwise.",
                    "No time is told for it; this is a defect of Muser, please report it.",
                )
        if play:
            ordinary.append(took)
            rounds.append(timed)
    found = _accounted(rounds, empty)
    return {
        "ordinary_ns": Spread.of(ordinary).median,
        **_told(found),
        "entries": _entries(weights, rounds[0].pieces, found, step),
    }


def _accounted(rounds: Sequence[Timed], empty: Sequence[float]) -> Account:
    return account(
        [one.whole for one in rounds],
        [one.serial for one in rounds],
        [one.stamped for one in rounds],
        empty,
        [piece.launch is not None for piece in rounds[0].pieces],
    )


def _told(found: Account) -> dict[str, float]:
    times = {
        "wall_ns": found.wall,
        "kernels_ns": float(found.kernels.sum()),
        "starts_ns": found.starts,
        "copies_ns": found.copies,
        "overlapped_ns": found.overlapped,
        "stamp_ns": found.stamp,
    }
    return {name: round(value, 1) for name, value in times.items()}


def _entries(
    weights: Weights, pieces: Sequence[Piece], found: Account, step: Step
) -> dict[str, list[Any]]:
    """Columns: one item a launch, but `labels`, which `label` counts into.

    Bytes are those of weights and of K and V rows alone.
    """
    launched = [
        (piece.launch, len(step.outputs if piece.is_tail else step.tokens), float(ns))
        for piece, ns in zip(pieces, found.kernels, strict=True)
        if piece.launch is not None
    ]
    names = [label_of(launch) for launch, _, _ in launched]
    labels = list(dict.fromkeys(names))
    specs = weights.graph.caches
    return {
        "labels": labels,
        "label": [labels.index(name) for name in names],
        "node": [launch.node for launch, _, _ in launched],
        "ns": [round(ns, 1) for _, _, ns in launched],
        "bytes": [launch_bytes(weights, specs, launch, step) for launch, _, _ in launched],
        "operations": [launch_products(weights, launch, rows) for launch, rows, _ in launched],
    }


def label_of(launch: Launch) -> str:
    """A launch's label and the weights that it reads, without the layer's number: projections by
    one kernel differ by their sizes.
    """
    roles = (name.removesuffix(".weight") for name in launch.tensors)
    shown = "+".join(role.split(".", 2)[-1] for role in roles)
    return f"{launch.label} {shown}".rstrip()
