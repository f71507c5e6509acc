"""Tapes: launches in order, recorded once, and what they are called."""

import ctypes
from dataclasses import dataclass

from muser.devices.cuda.card import Card, Kernel, Shape
from muser.errors import ArithmeticFault


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a step: which pipeline, how it is launched, and for which node.

    `served`: the type of the weights that it reads, `KV` for what reads or writes caches, `rows`
    for the rest. `bytes`: of weights that it reads. Its arguments hold `faults` at `fault_at`.
    """

    kernel: Kernel
    label: str
    shape: Shape
    args: ctypes.Structure
    node: str
    served: str
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tape:
    """The launches of one row bucket; entry numbers begin at `first`."""

    launches: tuple[Launch, ...]
    first: int = 0

    def queue(self, card: Card) -> None:
        for launch in self.launches:
            card.launch(launch.kernel, launch.shape, launch.args)

    def fault(self, word: int) -> ArithmeticFault:
        """What a fault word says."""
        entry, row = word >> 32, word & 0xFFFFFFFF
        launch = self.launches[entry - self.first]
        return ArithmeticFault(
            f"Row {row} of {launch.node} left the finite numbers ({launch.label}).",
            "The weights or the prompt drive this model out of range; no answer is given.",
        )
