"""Metadata values of a GGUF file: their types, and how each looks in Python.

Scalars become int, float, bool or str; numeric arrays read-only NumPy arrays of the file's own
width; string arrays `Strings`, decoded on demand; arrays of arrays tuples.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from muser.errors import FormatError

Value: TypeAlias = (
    "int | float | bool | str | NDArray[np.generic] | Sequence[str] | Sequence[Value]"
)


class ValueType(IntEnum):
    """The tag that stands before a metadata value (GGUF specification, `gguf_type`)."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


DTYPES: Mapping[ValueType, np.dtype[np.generic]] = {
    ValueType.U8: np.dtype("<u1"),
    ValueType.I8: np.dtype("<i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}
"""The fixed-width types; STRING and ARRAY have none."""

_BY_DTYPE = {dtype: kind for kind, dtype in DTYPES.items()}


class Strings(Sequence[str]):
    """A string array of a file, decoded item by item when asked.

    Item i is `u64 length, bytes` at `starts[i]` of `view`; the lengths were checked when the file
    was opened. Raises FormatError when an item is read that is not UTF-8.
    """

    __slots__ = ("_starts", "_view", "_what")

    def __init__(self, view: memoryview, starts: "array[int]", what: str) -> None:
        self._view = view
        self._starts = starts
        self._what = what

    def __len__(self) -> int:
        return len(self._starts)

    def raw_bytes(self, i: int) -> bytes:
        """The bytes of item `i`, decoded or not."""
        at = self._starts[i]
        size = int.from_bytes(self._view[at : at + 8], "little")
        return bytes(self._view[at + 8 : at + 8 + size])

    def records(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """All items as stored, `u64 length, bytes` each, and where in them each begins."""
        starts = np.array(self._starts, np.int64)
        if not len(starts):
            return np.empty(0, np.uint8), starts
        first, end = int(starts[0]), int(starts[-1]) + 8 + len(self.raw_bytes(-1))
        return np.frombuffer(self._view, np.uint8, end - first, first), starts - first

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return decode(self.raw_bytes(i), f"item {i} of {self._what}")

    def __iter__(self) -> Iterator[str]:
        """All items, several times faster than one by one: they stand one after another."""
        if not self._starts:
            return
        base = self._starts[0]
        end = self._starts[-1] + 8 + len(self.raw_bytes(-1))
        raw = bytes(self._view[base:end])
        bounds = (np.frombuffer(self._starts, np.uint64) - np.uint64(base)).tolist()
        for i, (start, after) in enumerate(pairwise([*bounds, end - base])):
            try:
                yield raw[start + 8 : after].decode()
            except UnicodeDecodeError:
                yield self[i]  # raises, naming the item

    def __repr__(self) -> str:
        return f"<{len(self)} strings of {self._what}>"


class Metadata(Mapping[str, Value]):
    """Keys to values in file order, with the tag that each value had in its file (`types`)."""

    __slots__ = ("_values", "types")

    def __init__(self, values: Mapping[str, Value], types: Mapping[str, ValueType]) -> None:
        self._values = values
        self.types = types

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} keys>"


def decode(raw: bytes, what: str) -> str:
    """`raw` as text; raises FormatError naming `what` if it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"The text of {what} is not UTF-8 (byte {error.start}).",
            "Fetch the file again or convert the model again.",
        ) from error


def type_of(metadata: Mapping[str, Value], key: str) -> ValueType:
    """The tag of `metadata[key]`: the file's own for a `Metadata`, else what a writer gives it."""
    if isinstance(metadata, Metadata):
        return metadata.types[key]
    return natural_type(metadata[key])


def natural_type(value: Value) -> ValueType:
    """The tag of a value without a file: U32 for small natural numbers, F32 for floats.

    A NumPy scalar keeps its own width, so `numpy.int64(3)` forces I64.
    Raises FormatError for a value that GGUF cannot hold.
    """
    if isinstance(value, np.generic):
        return array_type(np.asarray(value))
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        return _integer_type(value)
    if isinstance(value, float):
        return ValueType.F32
    if isinstance(value, str):
        return ValueType.STRING
    return ValueType.ARRAY


def array_type(values: NDArray[np.generic]) -> ValueType:
    """The item tag of a NumPy array; raises FormatError for a dtype that GGUF lacks."""
    kind = _BY_DTYPE.get(values.dtype.newbyteorder("<"))
    if kind is None:
        raise FormatError(
            f"GGUF metadata has no type for {values.dtype}.",
            "Convert the values to a fixed-width integer, float or bool.",
        )
    return kind


def _integer_type(value: int) -> ValueType:
    ranges = {
        ValueType.U32: (0, 1 << 32),
        ValueType.I32: (-(1 << 31), 0),
        ValueType.U64: (0, 1 << 64),
        ValueType.I64: (-(1 << 63), 0),
    }
    for kind, (low, end) in ranges.items():
        if low <= value < end:
            return kind
    raise FormatError(f"The integer {value} exceeds 64 bits.", "Store it as text.")
