"""Runs the vectors of `graph/conformance.py` through a library's real code, once per library.

A device whose words differ in one place is refused: there is no "nearly" in this arithmetic.
"""

import ctypes
import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from muser.devices.cpu.proofs import operator_checks
from muser.errors import DeviceError
from muser.graph import conformance
from muser.graph.arithmetic import f32
from muser.kernels import Library, Shelf, address, processor_of

Array = NDArray[np.generic]
PASSED = "passed"


def require_conformance(library: Library, shelf: Shelf) -> None:
    """Runs the vectors unless the shelf remembers that these very bytes passed them here.

    A shelf may lie in a home that several machines share: a pass is one processor's, and one that
    cannot be told from others is never remembered. Raises `DeviceError` naming the first check that
    differs.
    """
    processor = processor_of(library)
    name = f"conformance-{library.sha256[:32]}-{_digest(processor)}-{_digest(_data())}"
    if processor is not None and shelf.note(name) == PASSED:
        return
    for check, wrong in run_checks(library):
        if wrong:
            raise DeviceError(
                f"The {library.isa} kernels fail the conformance vectors: {check} differs in"
                f" {wrong} places.",
                "This compiler or processor does not keep the arithmetic; set MUSER_CC to another"
                " compiler, or MUSER_ISA=c.",
            )
    if processor is not None:
        shelf.remember(name, PASSED)


def run_checks(library: Library) -> Iterator[tuple[str, int]]:
    """Name of each check and how many words differ."""
    yield from _primitives(library)
    yield from operator_checks(library)


def _data() -> object:
    """Changes with the vectors, so that a remembered pass is about these."""
    return [getattr(conformance, name) for name in sorted(vars(conformance)) if name.isupper()]


def _digest(data: object) -> str:
    return hashlib.sha256(repr(data).encode()).hexdigest()[:16]


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
