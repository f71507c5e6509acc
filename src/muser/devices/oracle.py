"""Device `oracle`: the NumPy interpreter behind the device protocol. Slow; right by definition."""

import faulthandler
from collections.abc import Mapping
from threading import Event

import numpy as np
from numpy.typing import NDArray

from muser.devices.device import LastWords, Limits, Step
from muser.devices.host_memory import require_memory
from muser.devices.steps import first_tokens
from muser.errors import Cancelled
from muser.formats import GgufFile
from muser.graph import Graph
from muser.graph.interpreter import Interpreter
from muser.weights import Memory, Weights

STDERR = 2


class OracleRunner:
    """One model on the oracle."""

    def __init__(self, graph: Graph, weights: Weights, limits: Limits) -> None:
        self.limits = limits
        self._interpreter = Interpreter(graph, weights.file, limits.context)
        self._served = (*weights.census, "KV", "rows")
        self._stop = Event()

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self._served, ("oracle",))

    @property
    def libraries(self) -> Mapping[str, str]:
        return {}

    def forward(self, step: Step) -> NDArray[np.float32]:
        def watch(node: str, rows: NDArray[np.float32]) -> None:
            if self._stop.is_set():
                raise Cancelled(f"Stopped before the operator after {node}.", "Start again.")

        if self._stop.is_set():
            raise Cancelled("Stopped before the first operator.", "Start again.")
        return self._interpreter.forward(
            step.tokens.tolist(),
            step.positions.tolist(),
            step.slots.tolist(),
            step.outputs.tolist(),
            watch,
        )

    def choose(self, step: Step) -> NDArray[np.int32]:
        return first_tokens(self.forward(step))

    def cancel(self) -> None:
        self._stop.set()

    def resume(self) -> None:
        self._stop.clear()

    def close(self) -> None:
        return


class OracleDevice:
    """NumPy alone: what every other device must equal."""

    name = "oracle"
    chunk = 256
    looks = True
    memory: Memory | None = None

    def guard(self, file: GgufFile, last_words: LastWords) -> None:
        """See `Device`. No compiled code is here to say it: Python's own report has to do."""
        faulthandler.enable(STDERR)

    def load(self, graph: Graph, weights: Weights, limits: Limits) -> OracleRunner:
        require_memory(graph, limits)
        return OracleRunner(graph, weights, limits)
