"""The CUDA device: kernels compiled by NVRTC for the card that is here."""

import faulthandler
from weakref import finalize

from muser.devices.cuda.card import Card
from muser.devices.cuda.conformance import require_conformance
from muser.devices.cuda.driver import open_card
from muser.devices.cuda.placing import WeightSource
from muser.devices.cuda.runner import CudaRunner
from muser.devices.device import LastWords, Limits
from muser.formats import GgufFile
from muser.graph import Graph
from muser.kernels import Shelf, load_cuda
from muser.places import libraries
from muser.weights import Memory

STDERR = 2


class CudaDevice:
    """The card `number`, as the driver counts them."""

    name = "cuda"
    chunk = 2048
    looks = False

    def __init__(self, number: int = 0, shelf: Shelf | None = None) -> None:
        """Raises `DeviceError` without driver, card or compiler, or where conformance fails."""
        self._number = number
        first = open_card(number)  # keeps the card's context while this lives
        finalize(self, first.close).atexit = False  # a process that ends gives all back anyway
        self.facts = first.facts
        self.memory: Memory | None = shelf or Shelf(libraries())
        self.library = load_cuda(self.facts.architecture, self.memory)
        require_conformance(self.open, self.facts, self.library, self.memory)

    def open(self) -> Card:
        """The card, with a queue and memory of its own."""
        return open_card(self._number)

    def guard(self, file: GgufFile, last_words: LastWords) -> None:
        """See `Device`. Only the loading reads the file, through the driver's own handlers."""
        faulthandler.enable(STDERR)

    def load(self, graph: Graph, weights: WeightSource, limits: Limits) -> CudaRunner:
        """On a queue of its own; raises what `CudaRunner` raises."""
        return CudaRunner(self.open(), self.library, graph, weights, limits)
