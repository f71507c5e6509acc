"""The data of one step: a small block that is uploaded whole, and what comes back of each step.

The block is int32: n, m, two spare words, then `rows` each of tokens, positions, slots and outputs,
and the fault word (u64, all ones: none). The chosen ids follow, int32; with the fault word they are
what comes back.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muser.devices.cuda.card import Address, Card
from muser.devices.cuda.memory import Memory
from muser.devices.device import Step

HEAD = 4  # words
ARRAYS = ("tokens", "positions", "slots", "outputs")
WORD, FAULT_BYTES = 4, 8
NO_FAULT = (1 << 64) - 1


class StepPointers(ctypes.Structure):
    """`struct Step` of the texts; `count` points to n or to m."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("tokens", ctypes.c_uint64),
        ("positions", ctypes.c_uint64),
        ("slots", ctypes.c_uint64),
        ("outputs", ctypes.c_uint64),
    )


class Faults(ctypes.Structure):
    """`struct Faults` of the texts: where the fault word stands, and the number of the entry."""

    _fields_ = (("word", ctypes.c_uint64), ("entry", ctypes.c_uint64))


def block_bytes(rows: int) -> int:
    """Of a step block and what comes back, on the card."""
    return _data_bytes(rows) + FAULT_BYTES + WORD * rows


def _data_bytes(rows: int) -> int:
    return WORD * (HEAD + len(ARRAYS) * rows)


@dataclass(frozen=True, slots=True)
class StepBlock:
    """One row bucket's block: pinned on the host, its copy on the card, and what comes back."""

    rows: int
    host: NDArray[np.int32]
    device: Address
    back_host: NDArray[np.uint8]
    back: Address

    @classmethod
    def make(cls, card: Card, memory: Memory, rows: int) -> "StepBlock":
        size, device = _data_bytes(rows), memory.take("step", block_bytes(rows))
        host = card.pinned(size + FAULT_BYTES).view(np.int32)
        host[size // WORD :] = -1
        back_host = card.pinned(FAULT_BYTES + WORD * rows)
        return cls(rows, host, device, back_host, device + size)

    def pointers(self, count: str) -> StepPointers:
        """For a kernel that does `n` rows, or the `m` wanted ones."""
        first = self.device + WORD * HEAD
        arrays = (first + WORD * self.rows * i for i in range(len(ARRAYS)))
        return StepPointers(self.device + WORD * ("n", "m").index(count), *arrays)

    @property
    def ids(self) -> Address:
        """Where the chosen ids are written."""
        return self.back + FAULT_BYTES

    def write(self, step: Step) -> None:
        self.host[0], self.host[1] = len(step.tokens), len(step.outputs)
        for i, name in enumerate(ARRAYS):
            values = getattr(step, name)
            first = HEAD + i * self.rows
            self.host[first : first + len(values)] = values

    def want(self, outputs: NDArray[np.int32]) -> None:
        """Of a tail's block: the rows whose logits are wanted."""
        self.host[0] = self.host[1] = len(outputs)
        first = HEAD + ARRAYS.index("outputs") * self.rows
        self.host[first : first + len(outputs)] = outputs

    def send(self, card: Card) -> None:
        """Queues the upload, and forgets the last step's fault."""
        card.upload(self.device, self.host.view(np.uint8))

    def fetch(self, card: Card) -> None:
        """Queues the download of fault and ids."""
        card.download(self.back_host, self.back)

    @property
    def fault(self) -> int | None:
        """`entry << 32 | row` of the first fault, None without one."""
        word = int(self.back_host[:FAULT_BYTES].view(np.uint64)[0])
        return None if word == NO_FAULT else word

    def chosen(self, count: int) -> NDArray[np.int32]:
        return self.back_host[FAULT_BYTES:].view(np.int32)[:count].copy()
