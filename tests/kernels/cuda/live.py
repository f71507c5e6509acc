"""The tests of CUDA texts on a real card: the same names as `shim.py`, NVRTC and the driver behind.

Used where `MUSER_CARD` is set: `MUSER_CARD=1 pytest tests/kernels/cuda`. An array of a test lies in
one host arena; a launch copies what its arguments point to onto the card, at the same place of an
arena there, and back. Only what was compiled for this card's architecture runs; the rest skips.
"""

import ctypes
import functools
from pathlib import Path

import numpy as np
import pytest

from muser.devices.cuda.card import Shape
from muser.devices.cuda.driver import open_card
from muser.errors import DeviceError, DeviceLost, MuserError
from muser.kernels.nvrtc import Nvrtc
from muser.kernels.source import Source, read_source

from .shim import HANDED, LOST, RAN, ShimFailure, refuse_astray

HERE = Path(__file__).parent
ARENA, GAP = 4 << 30, 1024


class Arena:
    """Host memory and its image on the card; arrays are handed out one by one, for good."""

    def __init__(self, card, size=ARENA):
        self.card, self.used = card, 0
        self.host, self.image = np.zeros(size, np.uint8), card.allocate(size)

    def take(self, size, alignment):
        base = self.host.ctypes.data
        at = -(-(base + self.used) // alignment) * alignment - base
        if at + size > self.host.nbytes:
            raise AssertionError("the tests' arrays fill the arena")
        self.used = at + size + GAP
        HANDED.add(base + at, size)
        return self.host[at : at + size]

    def move(self, argument):
        """Turns an argument's addresses into those of the card; the pieces that they lie in."""
        words = np.frombuffer(argument, np.uint64, len(argument) // 8)
        touched = set()
        for at, word in enumerate(words.tolist()):
            start = HANDED.holding(word)
            if start is not None:
                touched.add(start)
                words[at] = self._moved(word)
        return touched

    def upload(self, start):
        self.card.upload(self._moved(start), self._bytes_of(start))

    def download(self, start):
        self.card.download(self._bytes_of(start), self._moved(start))

    def _moved(self, address):
        return address - self.host.ctypes.data + self.image

    def _bytes_of(self, start):
        first = start - self.host.ctypes.data
        return self.host[first : first + HANDED.sizes[start]]


@functools.cache
def arena():
    """This process's. Without a card that can be used the run ends, as it does with a lost one."""
    try:
        return Arena(open_card())
    except DeviceError as error:
        LOST.append(str(error))
        raise


def device(array, alignment=256):
    """A copy whose first byte is aligned like an allocation on a card."""
    array = np.ascontiguousarray(array)
    copy = arena().take(array.nbytes, alignment).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def poisoned(shape, dtype):
    """What nobody has written yet: all bits set, a NaN as f32."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return device(np.full(size, 0xFF, np.uint8)).view(dtype).reshape(shape)


def runs(architecture):
    """Whether the card here is of an architecture."""
    number = "".join(map(str, arena().card.facts.capability))
    return architecture in (f"sm_{number}", f"sm_{number}a")


def source_of(texts):
    """`unit.cu`, which includes some texts behind `muser.cuh`, and all that it can include."""
    mine = {f"texts/{path.name}": path.read_bytes() for path in (HERE / "texts").glob("*.cuh")}
    unit = "".join(f'#include "{name}"\n' for name in ("muser.cuh", *texts)).encode()
    return Source({**read_source("cuda").texts, **mine, "unit.cu": unit})


class Live:
    """See `shim.Shim`."""

    def __init__(self, texts, architecture):
        if not runs(architecture):
            pytest.skip(f"this card does not run {architecture}")
        image = Nvrtc().compiled(source_of(texts), "unit.cu", architecture).image
        self.architecture, self.inexact_sums = architecture, 0
        self._library = arena().card.library(image)

    def size(self, name):
        """A `SIZE` of the texts."""
        return self._library.size(name)

    def launch(self, kernel, grid, block, argument, shared=0, seed=0):
        """Run one kernel to its end. Raises `ShimFailure` with what the driver says of it."""
        place, argument = arena(), bytearray(argument)
        refuse_astray(kernel, argument)
        touched = place.move(argument)
        sizes = (grid,) if isinstance(grid, int) else tuple(grid)
        threads = block if isinstance(block, int) else block[0]
        shape = Shape((*sizes, 1, 1)[:3], threads, shared)
        try:
            for start in touched:
                place.upload(start)
            held = (ctypes.c_uint8 * len(argument)).from_buffer(argument)
            place.card.launch(self._library.kernel(kernel, shared), shape, held)
            for start in touched:
                place.download(start)
            place.card.wait()
        except MuserError as error:
            said = f"{kernel}: {error}"
            if isinstance(error, DeviceLost):
                LOST.append(said)
            raise ShimFailure(said) from error
        RAN.add((self.architecture, kernel))
