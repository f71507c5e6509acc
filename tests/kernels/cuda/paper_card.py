"""A card on paper: it loads real machine code, notes what is launched, and computes nothing."""

import ctypes

import numpy as np

from muser.devices.cuda.card import Facts

CARDS = {
    "sm_80": ((8, 0), 108, 166_912),
    "sm_90": ((9, 0), 132, 232_448),
    "sm_90a": ((9, 0), 132, 232_448),
    "sm_100": ((10, 0), 148, 232_448),
    "sm_120": ((12, 0), 170, 101_376),
}
"""Compute capability, processors, and bytes of shared memory of a block."""


class PaperLoaded:
    def __init__(self, image):
        self.image = image

    def kernel(self, symbol, shared):
        assert symbol in self.image.kernels, symbol
        return symbol, self.image.uses[symbol]

    def size(self, symbol):
        return self.image.sizes[symbol]


class PaperCard:
    """`images`: unit to its `Image`; a library's bytes are the unit's name."""

    def __init__(self, architecture, images, shared=None):
        capability, processors, most = CARDS[architecture]
        self.facts = Facts(
            name="a card on paper",
            capability=capability,
            processors=processors,
            memory=1 << 37,
            shared=shared or most,
            driver="0",
            bytes_a_cycle=18.0,
        )
        self.images, self.next = images, 1 << 40
        self.launches = []

    def enter(self):
        pass

    def free_bytes(self):
        return self.facts.memory

    def allocate(self, size):
        self.next += -(-size // 256) * 256
        return self.next

    def pinned(self, size):
        return np.zeros(size, np.uint8)

    def library(self, image):
        return PaperLoaded(self.images[image.decode()])

    def launch(self, kernel, shape, args):
        self.launches.append((*kernel, shape, ctypes.sizeof(args)))

    def upload(self, to, source):
        pass

    def download(self, to, source):
        to[:] = 0xFF

    def fill(self, to, size, byte):
        pass

    def record(self, work):
        work()
        return self

    def play(self):
        pass

    def mark(self):
        return lambda: None

    def wait(self):
        pass

    def side(self):
        return self

    def close(self):
        pass
