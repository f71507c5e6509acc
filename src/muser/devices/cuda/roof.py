"""How fast a card reads memory and does nothing else, and what launching nothing takes."""

import ctypes
from functools import partial

import numpy as np

from muser.devices.cuda.card import Address, Shape
from muser.devices.cuda.lowering import Shared
from muser.errors import DeviceError

KERNEL = "read_through"
THREADS, BLOCKS = 256, 4  # of a block; blocks of a processor, all of which are there at once
WORD, UNIT = 8, 16  # bytes of a sum, and of what a thread reads at once
EMPTY_LAUNCHES = 256
BYTE = 1  # what the buffer is filled with: its sum is known


class ReadThrough(ctypes.Structure):
    """`ReadThrough` of `read.cuh`; `count` counts 16 bytes."""

    _fields_ = (
        ("source", ctypes.c_uint64),  # `from`
        ("sums", ctypes.c_uint64),
        ("count", ctypes.c_int64),
    )


def reading_times(shared: Shared, size: int, plays: int) -> list[float]:
    """Nanoseconds of reading a buffer of `size` bytes once, for each of `plays` times.

    The bytes beyond its last whole 16 are left out. Raises `DeviceError` where the sum is wrong.
    """
    card, count = shared.card, size // UNIT
    blocks = BLOCKS * card.facts.processors
    buffer = _kept(shared, "roof", count * UNIT)
    sums = _kept(shared, "roof sums", blocks * THREADS * WORD)
    card.fill(buffer, count * UNIT, BYTE)
    shape, args = Shape((blocks, 1, 1), THREADS), ReadThrough(buffer, sums, count)
    kernel = shared.pipelines.kernel(KERNEL, 0)
    clocked = card.clocked([partial(card.launch, kernel, shape, args)], overlaps=False)
    times = [clocked.play()[0] for _ in range(plays)]
    host = card.pinned(blocks * THREADS * WORD)
    card.download(host, sums)
    card.wait()
    total = int(host.view(np.uint64).sum(dtype=np.uint64))
    if plays and total != count * (UNIT // WORD) * int.from_bytes([BYTE] * WORD) % (1 << 64):
        raise DeviceError(
            "The card read other bytes than were written to its memory.",
            "Check its memory (nvidia-smi), and whether other programs run on it.",
        )
    return times


def empty_launch(shared: Shared, plays: int) -> list[float]:
    """Nanoseconds of one launch that does nothing, among many in a row that wait for each other;
    a thread block for each processor. For each of `plays` times.
    """
    card = shared.card
    sums = _kept(shared, "launch sums", WORD)
    shape, args = Shape((card.facts.processors, 1, 1), THREADS), ReadThrough(sums, sums, 0)
    kernel = shared.pipelines.kernel(KERNEL, 0)

    def work() -> None:
        for _ in range(EMPTY_LAUNCHES):
            card.launch(kernel, shape, args)

    clocked = card.clocked([work], overlaps=False)
    return [clocked.play()[0] / EMPTY_LAUNCHES for _ in range(plays)]


def _kept(shared: Shared, name: str, size: int) -> Address:
    """Memory beside what the model takes, until the card is closed; once for each size."""
    place = f"{name} {size}"
    if place not in shared.aside:
        shared.aside[place] = shared.memory.take(name, size)
    return shared.aside[place]
