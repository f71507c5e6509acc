"""Section 1 of the arithmetic through the functions that all CUDA kernels are made of."""

import ctypes
from collections.abc import Callable, Iterator

import numpy as np

from muser.devices.cuda.card import Address, Card, Shape
from muser.devices.cuda.memory import Memory
from muser.devices.cuda.pinned import Pinned
from muser.devices.cuda.pipelines import Pipelines
from muser.devices.words import Array, Words, primitive_words
from muser.kernels import CudaLibrary

THREADS = 256
UNUSED = ("int64",)
"""Primitives that no CUDA kernel has: sums of 64 bits never become f32 there."""


class Arguments(ctypes.Structure):
    """`Words` of `primitives.cuh`."""

    _fields_ = (
        ("sources", ctypes.c_uint64 * 3),
        ("out", ctypes.c_uint64),
        ("count", ctypes.c_int),
    )


def primitive_checks(opens: Callable[[], Card], library: CudaLibrary) -> Iterator[tuple[str, int]]:
    """Name of each primitive and how many bytes differ."""
    card = opens()
    try:
        card.enter()
        bench = _Bench(card, library)
        for words in primitive_words():
            if words.name not in UNUSED:
                yield words.name, words.wrong(bench.made(words))
    finally:
        card.close()


class _Bench:
    def __init__(self, card: Card, library: CudaLibrary) -> None:
        self._card, self._memory, self._pinned = card, Memory(card), Pinned(card)
        self._pipelines = Pipelines(card, library)

    def made(self, words: Words) -> Array:
        """What the card makes of the sources."""
        out = self._put(np.zeros_like(words.expected))
        args = Arguments(out=out, count=len(words.expected))
        for i, source in enumerate(words.sources):
            args.sources[i] = self._put(source)
        shape = Shape((-(-len(words.expected) // THREADS), 1, 1), THREADS)
        self._card.launch(self._pipelines.kernel(f"check_{words.name}", 0), shape, args)
        found = np.empty_like(words.expected)
        self._pinned.down(found, out)
        return found

    def _put(self, values: Array) -> Address:
        where = self._memory.take("words", values.nbytes)
        self._pinned.up(where, values)
        return where
