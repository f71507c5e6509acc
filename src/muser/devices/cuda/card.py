"""What the CUDA device asks of a card: memory, kernels, and a recorded sequence of launches.

`driver.py` is a real one; the tests have another, which runs the same texts on the CPU.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Address = int
"""Where something lies in a card's memory."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A card: `capability` is its compute capability, `memory` its size in bytes.

    `shared`: bytes of shared memory that one thread block may take. `bytes_a_cycle`: what memory
    could send to each multiprocessor in a cycle of its clock, by clocks and width; 0: unknown.
    """

    name: str
    capability: tuple[int, int]
    processors: int
    memory: int
    shared: int
    driver: str
    bytes_a_cycle: float

    @property
    def architecture(self) -> str:
        """What kernels are compiled for. Only sm_90 has instructions of its own that we use."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if self.capability == (9, 0) else "")


class Kernel(Protocol):
    """One function of a loaded library."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A launch: `grid` blocks, `block` threads each, `shared` bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: int
    shared: int = 0


class Recording(Protocol):
    """Launches and copies that were recorded once."""

    def play(self) -> None:
        """Queues all of it."""


class Clocked(Protocol):
    """Pieces of work that were recorded once, the card's clock read around each."""

    def play(self) -> list[float]:
        """Does all of it and waits: nanoseconds of each piece, by the card's own clock."""


class Card(Protocol):
    """One card and one queue of work. Every method may raise `DeviceError`, or `DeviceLost`."""

    facts: Facts

    def free_bytes(self) -> int:
        """Memory that can be allocated now."""

    def allocate(self, size: int) -> Address:
        """`size` bytes of zeros, until `close`."""

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """Host memory of zeros that copies may read and write while the host goes on."""

    def library(self, image: bytes) -> "Loaded":
        """Loads compiled code."""

    def launch(self, kernel: Kernel, shape: Shape, args: ctypes.Structure) -> None:
        """Queues a kernel; it may begin before the one before it has ended."""

    def upload(self, to: Address, source: NDArray[np.uint8]) -> None:
        """Queues a copy of pinned memory to the card."""

    def download(self, to: NDArray[np.uint8], source: Address) -> None:
        """Queues a copy from the card to pinned memory."""

    def fill(self, to: Address, size: int, byte: int) -> None:
        """Queues `size` bytes of one value."""

    def record(self, work: Callable[[], None]) -> Recording:
        """What `work` queues, which is not done now."""

    def wait(self) -> None:
        """Until everything that was queued is done."""

    def clocked(self, pieces: Sequence[Callable[[], None]], *, overlaps: bool) -> Clocked:
        """Records what each piece queues, and a reading of the clock before, between and behind.

        A piece begins when the one before it has ended. `overlaps`: whether, within a piece, a
        kernel may begin before the one before it has ended, as it may outside of here.
        """

    def mark(self) -> Callable[[], None]:
        """Marks the end of what is queued; a call of the answer waits until it is reached."""

    def enter(self) -> None:
        """The calling thread's work goes to this card from now on."""

    def side(self) -> "Card":
        """Another queue on the same card."""

    def close(self) -> None:
        """Gives back everything."""


class Loaded(Protocol):
    """A library on the card."""

    def kernel(self, symbol: str, shared: int) -> Kernel:
        """The function `symbol`, allowed to take up to `shared` bytes of dynamic shared memory."""

    def size(self, symbol: str) -> int:
        """A `SIZE` of the texts."""
