"""The CPU device: C kernels on a pool of threads."""

import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from muser.devices.arena import Arena
from muser.devices.conformance import require_conformance
from muser.devices.device import Limits, Step
from muser.devices.lowering import ARGMAX, BLOCKS, Lowering, block_size
from muser.devices.planes import Cache
from muser.devices.tape import Player, Tape, labels_by_type
from muser.errors import DeviceError, LimitError
from muser.graph import Argmax, Graph, Project, TakeRows
from muser.kernels import ROWS, Library, Shelf, bucket_of, choose_library
from muser.kv import round_up
from muser.places import libraries
from muser.weights import Weights

WEIGHT_ROWS = 8  # rows of weights that a worker unpacks at once
HEADER_BYTES = 24  # of scratch per block and row: d, m, eight mins as int16


def default_threads() -> int:
    """As many as the processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CpuDevice:
    """`isa` None: the best set of this machine, or what `MUSER_ISA` names."""

    name = "cpu"

    def __init__(
        self, threads: int | None = None, isa: str | None = None, shelf: Shelf | None = None
    ) -> None:
        self.threads = default_threads() if threads is None else threads
        if self.threads < 1:
            raise DeviceError(f"{threads} threads cannot compute.", "Ask for at least one.")
        shelf = shelf or Shelf(libraries())
        self.library = choose_library(shelf, isa)
        require_conformance(self.library, shelf)

    def load(self, graph: Graph, weights: Weights, limits: Limits) -> "CpuRunner":
        """Lowers the graph. Raises `DeviceError` for an operator or type without a pipeline."""
        return CpuRunner(self.library, self.threads, graph, weights, limits)


class CpuRunner:
    """A loaded model; see `Runner`."""

    def __init__(
        self, library: Library, threads: int, graph: Graph, weights: Weights, limits: Limits
    ) -> None:
        self.limits = limits
        self._vocabulary = graph.vocabulary
        self._library = library
        widths = _widest_sources(graph, weights)
        self._arena = Arena.build(_with_argmax(graph), limits, widths)
        lowering = Lowering(graph, weights, self._arena, limits.context)
        moves = lowering.run()
        self._keep = lowering.keep
        self._tapes = {rows: Tape.record(moves, library, rows) for rows in ROWS}
        self._player = Player(library, threads, _scratch_bytes(widths))
        self._logits = _logits_row(graph)
        self._takes_rows = any(isinstance(op, TakeRows) for op in graph.ops)

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        return labels_by_type(self._tapes.values())

    @property
    def libraries(self) -> Mapping[str, str]:
        return {self._library.name: self._library.sha256}

    @property
    def tapes(self) -> Mapping[str, Tape]:
        """Row bucket to what is played for it."""
        return self._tapes

    @property
    def rows(self) -> Mapping[str, NDArray[np.float32]]:
        """The arena, as the last step left it."""
        return self._arena.rows

    @property
    def caches(self) -> tuple[Cache, ...]:
        """One a layer; `export_rows` and `import_rows` speak f16."""
        return self._arena.caches

    def forward(self, step: Step) -> NDArray[np.float32]:
        self._check(step)
        self._arena.step.write(step)
        self._player.play(self._tapes[bucket_of(len(step.tokens))])
        rows = self._arena.rows[self._logits]
        chosen = rows[: len(step.outputs)] if self._takes_rows else rows[step.outputs]
        return np.array(chosen)

    def cancel(self) -> None:
        self._player.cancel()

    def close(self) -> None:
        self._player.close()

    def _check(self, step: Step) -> None:
        """What native code indexes with; the engine has refused such requests before."""
        count, limits = len(step.tokens), self.limits
        if not 0 < count <= limits.chunk or len(step.outputs) > count:
            raise LimitError(
                f"A step of {count} rows with {len(step.outputs)} outputs does not fit"
                f" {limits.chunk} rows.",
                "Ask for a larger chunk or send fewer rows.",
            )
        bounds = {
            "tokens": self._vocabulary,
            "positions": limits.context,
            "slots": limits.slots,
            "outputs": count,
        }
        for name, bound in bounds.items():
            values = getattr(step, name)
            if name != "outputs" and len(values) != count:
                raise LimitError(
                    f"A step has {len(values)} {name} for {count} rows.", "Give one for each row."
                )
            if len(values) and not (0 <= values.min() and values.max() < bound):
                raise LimitError(
                    f"A step's {name} reach from {values.min()} to {values.max()}.",
                    f"They must lie in 0 to {bound - 1}.",
                )
        if len(step.outputs) > 1 and bool(np.any(np.diff(step.outputs) <= 0)):
            raise LimitError("A step's outputs do not ascend.", "Name each row once, in order.")


def _widest_sources(graph: Graph, weights: Weights) -> dict[int, int]:
    """Block size to the widest row that a projection reads in such blocks."""
    widest: dict[int, int] = {}
    for op in graph.ops:
        for name in op.weights if isinstance(op, Project) else ():
            assert isinstance(op, Project)
            block, width = block_size(weights.tensor(name).type.name), graph.rows[op.source]
            if weights.tensor(name).type.elements > 1 and width % block:
                raise DeviceError(
                    f"{name} has rows of {width} elements, not a multiple of {block}.",
                    "The file is inconsistent; convert the model again.",
                )
            widest[block] = max(widest.get(block, 0), width)
    return widest


def _scratch_bytes(widths: Mapping[int, int]) -> int:
    """One worker's: a few unpacked weight rows of the widest projection."""
    most = 0
    for block, width in widths.items():
        span = round_up(width, block)
        most = max(most, WEIGHT_ROWS * (2 * span + HEADER_BYTES * (span // block)))
    return round_up(most + 64, 64)


def _with_argmax(graph: Graph) -> Graph:
    if not any(isinstance(op, Argmax) for op in graph.ops):
        return graph
    from dataclasses import replace

    return replace(graph, rows={**graph.rows, ARGMAX: 1})


def _logits_row(graph: Graph) -> str:
    last = graph.ops[-1]
    if isinstance(last, Argmax):
        return last.source
    return last.targets[-1] if isinstance(last, Project) else str(getattr(last, "target", ""))


__all__ = ["BLOCKS", "CpuDevice", "CpuRunner", "default_threads"]
