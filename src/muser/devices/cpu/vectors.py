"""The words of `graph/conformance.py` against what a library's real code makes of them."""

import ctypes
from collections.abc import Iterator
from functools import partial

import numpy as np

from muser.devices.cpu.runner import CpuRunner
from muser.devices.proofs import operator_checks
from muser.devices.words import Array, Words, primitive_words
from muser.kernels import Library, address


def run_checks(library: Library) -> Iterator[tuple[str, int]]:
    """Name of each check and how many words differ."""
    for words in primitive_words():
        yield words.name, words.wrong(_made(library, words))
    yield from operator_checks(partial(CpuRunner, library, 1))


def _made(library: Library, words: Words) -> Array:
    function = getattr(library.handle, f"muser_check_{words.name}")
    function.argtypes, function.restype = None, None
    out = np.zeros_like(words.expected)
    places = (ctypes.c_void_p(address(array)) for array in (*words.sources, out))
    function(ctypes.c_int64(len(out)), *places)
    return out
