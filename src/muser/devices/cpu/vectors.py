"""The words of `graph/conformance.py` against what a library's real code makes of them."""

import ctypes
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from muser.devices.cpu.runner import CpuRunner
from muser.devices.proofs import operator_checks
from muser.graph import conformance
from muser.graph.arithmetic import f32
from muser.kernels import Library, address

Array = NDArray[np.generic]


def run_checks(library: Library) -> Iterator[tuple[str, int]]:
    """Name of each check and how many words differ."""
    yield from _primitives(library)
    yield from operator_checks(partial(CpuRunner, library, 1))


def _call(library: Library, name: str, out: Array, *arrays: Array) -> Array:
    function = getattr(library.handle, f"muser_check_{name}")
    function.argtypes, function.restype = None, None
    count = ctypes.c_int64(len(out))
    function(count, *(ctypes.c_void_p(address(array)) for array in (*arrays, out)))
    return out


def _primitives(library: Library) -> Iterator[tuple[str, int]]:
    column, rne = conformance.column, conformance.RNE
    words = [np.array([row[0] for row in table]) for table in _INTEGERS.values()]
    fma = [column(conformance.FMA, i) for i in range(4)]
    yield "fma", _differs(library, "fma", fma[3], *fma[:3])
    x = np.array([f32(row[0]) for row in rne], np.float32)
    factor = np.full_like(x, f32(conformance.RNE_FACTOR))
    codes = np.array([row[1] for row in rne], np.int32)
    yield "rne", _differs(library, "rne", codes, factor, x)
    for (name, table), source in zip(_INTEGERS.items(), words, strict=True):
        expected = np.array([f32(row[1]) for row in table], np.float32)
        yield name, _differs(library, name, expected, source.astype(name))
    halves = conformance.F32_TO_F16
    wide = np.array([f32(row[0]) for row in halves], np.float32)
    narrow = np.array([row[1] for row in halves], np.uint16)
    yield "half", _differs(library, "half", narrow, wide)
    every = np.arange(1 << 16, dtype=np.uint16)
    every = every[every & 0x7C00 != 0x7C00]
    widened = every.view(np.float16).astype(np.float32)
    yield "from_half", _differs(library, "from_half", widened, every)
    divide = [column(conformance.DIVIDE, i) for i in range(3)]
    yield "divide", _differs(library, "divide", divide[2], *divide[:2])
    for name, words_of in _FUNCTIONS.items():
        yield name, _differs(library, name, column(words_of, 1), column(words_of, 0))


_INTEGERS: Mapping[str, tuple[tuple[int, str], ...]] = {
    "int32": conformance.INT32_TO_F32,
    "int64": conformance.INT64_TO_F32,
}

_FUNCTIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "inverse_root": conformance.INVERSE_ROOT,
    "exp": conformance.EXP,
    "exp2_fraction": conformance.EXP2_FRACTION,
}


def _differs(library: Library, name: str, expected: Array, *sources: Array) -> int:
    """Each vector alone and in a crowd of copies, so that vector code and its tail both meet it."""
    copies = 19
    crowd = [np.tile(source, copies) for source in sources]
    actual = _call(library, name, np.zeros(len(expected) * copies, expected.dtype), *crowd)
    return conformance.mismatches(np.tile(expected, copies), actual)
