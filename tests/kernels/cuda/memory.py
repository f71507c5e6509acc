"""Memory that was handed out to kernels, and what points elsewhere in a launch's argument."""

import bisect
import ctypes
import mmap

import numpy as np

_libc = ctypes.CDLL(None)
LEAST = 1 << 44
"""Two int32 side by side mostly look like less, and a driver reserves addresses there; a system's
memory mostly lies above.
"""


class Pieces:
    """Pieces of memory, found by the addresses in them."""

    def __init__(self):
        self._starts, self.sizes = [], {}

    def add(self, start, size):
        self.sizes[start] = size
        bisect.insort(self._starts, start)

    def drop(self, start):
        self._starts.remove(start)
        del self.sizes[start]

    def holding(self, address):
        """Where the piece begins in which, or at whose end, an address lies; None: in no piece."""
        i = bisect.bisect_right(self._starts, address) - 1
        if i < 0 or address > self._starts[i] + self.sizes[self._starts[i]]:
            return None
        return self._starts[i]

    def astray(self, argument):
        """Offsets of the words of an argument that are addresses here, but of no piece.

        A test on the CPU can read any array of NumPy's; no card can.
        """
        words = np.frombuffer(argument, np.uint64, len(argument) // 8).tolist()
        return [8 * i for i, word in enumerate(words) if self._is_astray(word)]

    def _is_astray(self, word):
        return word >= LEAST and self.holding(word) is None and _is_mapped(word)


def _is_mapped(address):
    page = ctypes.c_void_p(address & -mmap.PAGESIZE)
    return _libc.mincore(page, ctypes.c_size_t(mmap.PAGESIZE), ctypes.byref(ctypes.c_ubyte())) == 0
