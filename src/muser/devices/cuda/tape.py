"""Tapes: launches in order, recorded once, and what they are called."""

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muser.devices.cuda.card import Kernel, Shape
from muser.errors import ArithmeticFault


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a step: which pipeline, how it is launched, and for which nodes.

    `served`: the types of the weights that it reads, `KV` for what reads or writes caches, `rows`
    for the rest. `tensors`: names of the weights that it reads whole. `caches`: layers of which it
    reads the K and V rows that are seen.
    """

    kernel: Kernel
    label: str
    shape: Shape
    args: ctypes.Structure
    node: str
    served: tuple[str, ...]
    tensors: tuple[str, ...] = ()
    caches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Tape:
    """Launches in order. `entries`: nodes and launch that a fault word's entry number means."""

    launches: tuple[Launch, ...]
    entries: tuple[tuple[str, int], ...]

    def fault(self, word: int) -> ArithmeticFault:
        """What a fault word says."""
        entry, row = word >> 32, word & 0xFFFFFFFF
        nodes, launch = self.entries[entry]
        return ArithmeticFault(
            f"Row {row} of {nodes} left the finite numbers ({self.launches[launch].label}).",
            "The weights or the prompt drive this model out of range; no answer is given.",
        )


def served_by(tapes: Iterable[Tape]) -> Mapping[str, tuple[str, ...]]:
    """What a label served, to the labels, each in order of first use."""
    found: dict[str, dict[str, None]] = {}
    for tape in tapes:
        for launch in tape.launches:
            for kind in launch.served:
                found.setdefault(kind, {})[launch.label] = None
    return {kind: tuple(labels) for kind, labels in sorted(found.items())}
