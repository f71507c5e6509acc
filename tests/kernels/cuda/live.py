"""The tests of CUDA texts on a real card: the same names as `shim.py`, NVRTC and the driver behind.

Used where `MUSER_CARD` is set: `MUSER_CARD=1 pytest tests/kernels/cuda`. An array of a test lies in
one host arena; a launch copies what its arguments point to onto the card, at the same place of an
arena there, and back. Only what was compiled for this card's architecture runs; the rest skips.
"""

import bisect
import ctypes
from pathlib import Path

import numpy as np
import pytest

from muser.devices.cuda.driver import open_card
from muser.errors import MuserError
from muser.kernels.nvrtc import Nvrtc
from muser.kernels.source import Source, read_source

HERE = Path(__file__).parent
ARENA, GAP = 4 << 30, 1024


class Arena:
    """Host memory and its image on the card; arrays are handed out one by one, for good."""

    def __init__(self):
        self.card = open_card()
        self.host = np.zeros(ARENA, np.uint8)
        self.image = self.card.allocate(ARENA)
        self.starts, self.sizes, self.used = [], [], 0

    def take(self, size, alignment):
        base = self.host.ctypes.data
        at = -(-(base + self.used) // alignment) * alignment - base
        if at + size > ARENA:
            raise AssertionError("the tests' arrays fill the arena")
        self.used = at + size + GAP
        self.starts.append(base + at)
        self.sizes.append(size)
        return self.host[at : at + size]

    def moved(self, address):
        return address - self.host.ctypes.data + self.image

    def holding(self, address):
        """The array in which, or at whose end, an address lies; None for no address of ours."""
        i = bisect.bisect_right(self.starts, address) - 1
        return i if i >= 0 and address <= self.starts[i] + self.sizes[i] else None


ARENAS = []


def arena():
    if not ARENAS:
        ARENAS.append(Arena())
    return ARENAS[0]


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


class Live:
    """See `shim.Shim`."""

    def __init__(self, texts, architecture):
        card = arena().card
        if not runs(architecture):
            pytest.skip(f"this card does not run {architecture}")
        mine = {path.name: path.read_bytes() for path in (HERE / "texts").glob("*.cuh")}
        unit = "".join(f'#include "{name}"\n' for name in ("muser.cuh", *texts)).encode()
        source = Source({**read_source("cuda").texts, **mine, "unit.cu": unit})
        image = Nvrtc().compiled(source, "unit.cu", architecture).image
        self.architecture, self.inexact_sums = architecture, 0
        self._library = card.library(image)
        self.kernels = _Names(self._library)

    def size(self, name):
        """A `SIZE` of the texts."""
        return self._library.size(name)

    def launch(self, kernel, grid, block, argument, shared=0, seed=0):
        """Run one kernel to its end."""
        from .shim import RAN, ShimFailure

        place, card = arena(), arena().card
        words = bytearray(argument)
        touched = set()
        for at in range(0, len(words) - 7, 8):
            (value,) = np.frombuffer(words, np.uint64, 1, at)
            found = place.holding(int(value))
            if found is not None:
                touched.add(found)
                words[at : at + 8] = np.uint64(place.moved(int(value))).tobytes()
        for i in touched:
            self._copy(card.upload, place, i, up=True)
        held = (ctypes.c_uint8 * len(words)).from_buffer(words)
        try:
            from muser.devices.cuda.card import Shape

            sizes = (grid,) if isinstance(grid, int) else tuple(grid)
            threads = block if isinstance(block, int) else block[0]
            three = (*sizes, 1, 1)[:3]
            function = self._library.kernel(kernel, shared)
            card.launch(function, Shape(three, threads, shared), held)
            card.wait()
        except MuserError as error:
            raise ShimFailure(f"{kernel}: {error}") from error
        for i in touched:
            self._copy(card.download, place, i, up=False)
        card.wait()
        RAN.add((self.architecture, kernel))

    def _copy(self, copy, place, i, up):
        first = place.starts[i] - place.host.ctypes.data
        host = place.host[first : first + place.sizes[i]]
        where = place.moved(place.starts[i])
        copy(where, host) if up else copy(host, where)


class _Names:
    """The kernels of a library, asked for by name."""

    def __init__(self, library):
        self._library = library

    def __contains__(self, name):
        try:
            self._library.kernel(name, 0)
        except MuserError:
            return False
        return True
