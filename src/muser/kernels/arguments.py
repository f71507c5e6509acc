"""Mirrors of the structures in `cpu/muser.h`; loading a library compares their sizes.

Pointers are plain addresses: whoever fills them keeps the arrays alive.
"""

import ctypes

import numpy as np
from numpy.typing import DTypeLike, NDArray

Pointer = ctypes.c_void_p
CACHE_LINE = 64
"""Bytes. Memory that kernels load begins at a multiple: a vector that lies in two lines costs two
loads."""


class StepBlock(ctypes.Structure):
    """`struct step`: the only data that change between two plays of a tape."""

    _fields_ = (
        ("n", ctypes.c_int32),
        ("m", ctypes.c_int32),
        ("tokens", Pointer),
        ("positions", Pointer),
        ("slots", Pointer),
        ("outputs", Pointer),
    )


class Args(ctypes.Structure):
    """`struct args`: one record for every kernel; a kernel's text names the fields it reads."""

    _fields_ = (
        ("step", Pointer),
        ("rows", Pointer),
        ("x", Pointer),
        ("y", Pointer),
        ("out", Pointer),
        ("normed", Pointer),
        ("weight", Pointer),
        ("steps", Pointer),
        ("codes", Pointer),
        ("scales", Pointer),
        ("sums", Pointer),
        ("key", Pointer),
        ("key_steps", Pointer),
        ("value", Pointer),
        ("value_steps", Pointer),
        ("row_bytes", ctypes.c_int64),
        ("width", ctypes.c_int32),
        ("out_width", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("rotated", ctypes.c_int32),
        ("capacity", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("striped", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("factor", ctypes.c_float),
        ("inverse", ctypes.c_float),
    )


class Entry(ctypes.Structure):
    """`struct entry`: a function and its arguments (`own`: one record a worker, in a row).

    `wait`: every earlier entry must be done. `whole`: every worker does all of it, as if alone.
    """

    _fields_ = (
        ("run", Pointer),
        ("args", Pointer),
        ("wait", ctypes.c_uint32),
        ("own", ctypes.c_uint32),
        ("whole", ctypes.c_uint32),
        ("spare", ctypes.c_uint32),
    )


def address(array: NDArray) -> int:  # type: ignore[type-arg]
    """Where a C-contiguous array's data begin."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray:  # type: ignore[type-arg]
    """Zeros that begin at a cache line."""
    item = np.dtype(dtype).itemsize
    size = int(np.prod(shape)) * item
    room = np.zeros(size + CACHE_LINE, np.uint8)
    skip = -address(room) % CACHE_LINE
    return room[skip : skip + size].view(dtype).reshape(shape)
