"""The CPU device: C kernels on a pool of threads."""

from muser.devices.cpu.conformance import require_conformance
from muser.devices.cpu.guard import Guard
from muser.devices.cpu.lowering import WeightSource
from muser.devices.cpu.runner import CpuRunner
from muser.devices.cpu.threads import default_threads, require_threads
from muser.devices.device import LastWords, Limits
from muser.devices.host_memory import require_memory
from muser.formats import GgufFile
from muser.graph import Graph
from muser.kernels import Shelf, choose_library
from muser.places import libraries
from muser.weights import Memory


class CpuDevice:
    """`isa` None: the best set of this machine, or what `MUSER_ISA` names."""

    name = "cpu"
    chunk = 256
    looks = True

    def __init__(
        self, threads: int | None = None, isa: str | None = None, shelf: Shelf | None = None
    ) -> None:
        self.threads = default_threads() if threads is None else threads
        require_threads(self.threads)
        self.memory: Memory | None = shelf or Shelf(libraries())
        self.library = choose_library(self.memory, isa)
        require_conformance(self.library, self.memory)
        self._guard: Guard | None = None

    def guard(self, file: GgufFile, last_words: LastWords) -> None:
        """See `Device`. Raises `DeviceError` if the system refuses."""
        self._guard = Guard(self.library, last_words)
        self._guard.model(file)

    def load(self, graph: Graph, weights: WeightSource, limits: Limits) -> "CpuRunner":
        """Lowers the graph. Raises `DeviceError` for an operator or type without a pipeline.

        `LimitError` for one that does not fit into memory.
        """
        require_memory(graph, limits)
        mapped = None if self._guard is None else self._guard.packed
        return CpuRunner(self.library, self.threads, graph, weights, limits, mapped)
