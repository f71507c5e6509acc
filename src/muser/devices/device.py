"""What the engine asks of a device, and nothing more.

A device turns a graph and its weights into a `Runner`. A runner owns the caches of `slots`
sequences and computes one step at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muser.errors import MuserError
from muser.formats import GgufFile
from muser.graph import Graph
from muser.weights import Memory, Weights


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over `n` rows, which may belong to several slots.

    Shapes: `tokens`, `positions`, `slots` int32 `[n]`; `outputs` int32 `[m]`, the ascending row
    indices whose logits are wanted. Rows of one slot stand in ascending position, without gaps.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    slots: NDArray[np.int32]
    outputs: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a runner is sized for: `context` positions a slot, `slots`, and rows a step."""

    context: int
    slots: int
    chunk: int


LastWords: TypeAlias = Callable[[MuserError], bytes]
"""How a process says what ends it."""


class Runner(Protocol):
    """A loaded model.

    One thread at a time may call `forward`; `cancel`, `resume` and `close` may come from any.
    """

    limits: Limits

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """What was played since `resume`: tensor type to the labels that read such tensors.

        Two keys are no tensor types: `KV` has what reads or writes caches, `rows` the rest.
        """

    @property
    def libraries(self) -> Mapping[str, str]:
        """Library name to the SHA-256 of the bytes that were loaded."""

    def forward(self, step: Step) -> NDArray[np.float32]:
        """Logits `[m, vocabulary]` of the wanted rows.

        Raises `ArithmeticFault` when a row left the finite numbers (the layer is named) and
        `Cancelled` when `cancel` was called and not forgotten; the caches then hold undefined rows
        at this step's positions, and only there.
        """

    def choose(self, step: Step) -> NDArray[np.int32]:
        """The first token in token order of each wanted row, `[m]`: the largest logit, of equal
        ones the lower id. Raises what `forward` raises.
        """

    def cancel(self) -> None:
        """The running `forward`, and every later one until `resume`, raises `Cancelled`."""

    def resume(self) -> None:
        """Begin new work: forget an earlier `cancel` and what was played so far."""

    def close(self) -> None:
        """Cancel, wait until no `forward` runs, and give back the threads.

        A later `forward` raises `DeviceError`.
        """


class Device(Protocol):
    """A place that computes. `memory` is what it remembers from run to run, if it does.

    `looks`: whether it leaves the look at every scale of a file to `Weights`.
    `chunk`: how many prompt tokens a step takes unless a caller says otherwise.
    """

    name: str
    chunk: int
    looks: bool
    memory: Memory | None

    def guard(self, file: GgufFile, last_words: LastWords) -> None:
        """From now on, bytes of `file` that are gone when they are read end the process.

        It writes `last_words` of the error to standard error and leaves with the error's status,
        where it would else die of SIGBUS without a word. Only for a process whose signals are the
        caller's own. Before anything touches the file's tensors.
        """

    def load(self, graph: Graph, weights: Weights, limits: Limits) -> Runner:
        """Lower the graph. Raises `DeviceError` for an operator or type without a pipeline."""
