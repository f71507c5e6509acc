"""A card that is none: CUDA texts run on the CPU, behind what the CUDA device asks of a card."""

import ctypes
import threading

import numpy as np

from muser.devices.cuda.card import Facts
from muser.kernels import CudaLibrary
from muser.kernels.cuda_registry import UNITS, units_of
from muser.kernels.source import read_source
from tests.kernels.cuda.shim import Shim, room

SHARED = {"sm_80": 166_912, "sm_90": 232_448, "sm_90a": 232_448}
CAPABILITY = {"sm_80": (8, 0), "sm_90": (9, 0), "sm_90a": (9, 0)}
LIBRARIES = {}
LOCK = threading.Lock()  # the texts' shared memory is the process's own


def shim_library(architecture):
    """As `load_cuda`, but the images are only the names of what is compiled when it is loaded."""
    images = {unit: f"{architecture} {unit}".encode() for unit in units_of(architecture)}
    return CudaLibrary(architecture, "shim", read_source("cuda").digest, images)


class ShimLoaded:
    def __init__(self, architecture, unit):
        key = architecture, unit
        if key not in LIBRARIES:
            LIBRARIES[key] = Shim((UNITS[unit].text,), architecture)
        self.shim = LIBRARIES[key]

    def kernel(self, symbol, shared):
        assert symbol in self.shim.kernels, symbol
        return self.shim, symbol

    def size(self, symbol):
        return self.shim.size(symbol)


class ShimRecording:
    def __init__(self, work):
        self.work = work

    def play(self):
        for one in self.work:
            one()


class ShimCard:
    """`processors` is small, so that blocks have several shares of work to do."""

    def __init__(self, architecture="sm_90", processors=3, memory=1 << 40, seed=0):
        self.facts = Facts(
            name="the shim",
            capability=CAPABILITY[architecture],
            processors=processors,
            memory=memory,
            shared=SHARED[architecture],
            driver="0",
            bytes_a_cycle=18.0,
        )
        self.architecture, self.seed = architecture, seed
        self.held, self.taken, self.recording = [], 0, None
        self.closed = False
        self.launches, self.played = 0, set()  # names of kernels

    def enter(self):
        pass

    def free_bytes(self):
        return self.facts.memory - self.taken

    def allocate(self, size):
        self.held.append(room(size))
        self.taken += size
        return self.held[-1].ctypes.data

    def pinned(self, size):
        return np.zeros(size, np.uint8)

    def library(self, image):
        return ShimLoaded(*image.decode().split())

    def launch(self, kernel, shape, args):
        shim, symbol = kernel
        argument = bytes(args)

        def go():
            with LOCK:
                self.launches += 1
                self.played.add(symbol)
                shim.launch(
                    symbol, shape.grid, shape.block, argument, shared=shape.shared, seed=self.seed
                )

        self._queue(go)

    def upload(self, to, source):
        self._queue(lambda: ctypes.memmove(to, source.ctypes.data, source.nbytes))

    def download(self, to, source):
        self._queue(lambda: ctypes.memmove(to.ctypes.data, source, to.nbytes))

    def fill(self, to, size, byte):
        self._queue(lambda: ctypes.memset(to, byte, size))

    def record(self, work):
        self.recording = []
        work()
        recorded, self.recording = self.recording, None
        return ShimRecording(recorded)

    def mark(self):
        return lambda: None

    def wait(self):
        pass

    def side(self):
        return self

    def close(self):
        self.closed = True

    def _queue(self, work):
        if self.recording is None:
            work()
        else:
            self.recording.append(work)
