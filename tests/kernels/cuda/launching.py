"""One operator on the shim: arguments as structs, step data, and where faults go."""

import ctypes
import itertools
from dataclasses import dataclass, field

import numpy as np

from .shim import address, device, poisoned

ENTRY = 7
NO_FAULT = (1 << 64) - 1


def structure(**fields):
    """A C struct of these values: arrays as their addresses, floats as f32, other ints as int32."""
    kinds = {float: ctypes.c_float, int: ctypes.c_int32, bool: ctypes.c_int32}
    values, types = [], []
    for name, value in fields.items():
        if value is None or isinstance(value, np.ndarray):
            types.append((name, ctypes.c_uint64))
            values.append(address(value))
        elif isinstance(value, ctypes.Structure):
            types.append((name, type(value)))
            values.append(value)
        else:
            kind = ctypes.c_float if isinstance(value, np.floating) else kinds[type(value)]
            types.append((name, kind))
            values.append(float(value) if kind is ctypes.c_float else int(value))
    made = type("Arguments", (ctypes.Structure,), {"_fields_": types})(*values)
    made.kept = fields
    return made


def constant(array):
    """What a launch reads and nobody writes, as a copy on the card; None stays None."""
    return None if array is None else device(array)


@dataclass
class Play:
    """`count` real rows of a launch made for `bucket` of them; the rows beyond are poison."""

    count: int
    bucket: int
    tokens: np.ndarray | None = None
    positions: np.ndarray | None = None
    slots: np.ndarray | None = None
    outputs: np.ndarray | None = None
    word: np.ndarray = field(default_factory=lambda: poisoned((1,), np.uint64))

    def step(self):
        arrays = {"count": device(np.array([self.count], np.int32))}
        for name in ("tokens", "positions", "slots", "outputs"):
            given = getattr(self, name)
            values = np.full(self.bucket, -1, np.int32)
            values[: self.count] = np.arange(self.count) if given is None else given[: self.count]
            arrays[name] = device(values)
        return structure(**arrays)

    def faults(self):
        return _Faults(address(self.word), ENTRY)

    def source(self, rows):
        """A copy of f32 `[count, width]` with poison rows up to the bucket."""
        padded = poisoned((self.bucket, rows.shape[1]), rows.dtype)
        padded[: self.count] = rows[: self.count]
        return padded

    def target(self, width, dtype=np.float32):
        return poisoned((self.bucket, width), dtype)

    def results(self, rows):
        """The real rows; the others must be as they were."""
        assert (rows[self.count :].view(np.uint8) == 0xFF).all()
        return rows[: self.count]

    @property
    def fault(self):
        """The row of the first fault, or None."""
        word = int(self.word[0])
        if word == NO_FAULT:
            return None
        assert word >> 32 == ENTRY
        return word & 0xFFFFFFFF


class _Faults(ctypes.Structure):
    _fields_ = (("word", ctypes.c_uint64), ("entry", ctypes.c_uint64))


COUNTS = ((1, 1), (2, 4), (3, 4), (4, 4), (5, 16), (16, 16), (37, 64), (64, 64))
"""Real rows and those that a launch was made for."""


def orders(counts=COUNTS):
    """Counts, each with another order of fibers."""
    return [(*pair, seed) for pair, seed in zip(counts, itertools.cycle((0, 1, 2)), strict=False)]
