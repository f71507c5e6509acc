"""The head of a GGUF file: counts, metadata records, tensor records (GGUF specification, v3).

0  u32 magic "GGUF"    4  u32 version    8  u64 tensors    16  u64 metadata records
record: u64 length, key, u32 value type, value
value: fixed width, or string (u64 length, bytes), or array (u32 item type, u64 count, items)
tensor: u64 length, name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset in the data
zero bytes up to the next multiple of the alignment, then the data
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muser.formats.block_type import BlockType
from muser.formats.cursor import Cursor
from muser.formats.gguf_values import DTYPES, Metadata, Strings, Value, ValueType, decode

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # the layouts are the same; 3 only added big-endian files
MAX_RECORDS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_ITEMS = 1 << 22  # the longest known array, a merges list, has some 500,000
MAX_ARRAYS = 1 << 12  # arrays inside arrays, in one file
MAX_NESTING = 4
MAX_KEY = (1 << 16) - 1  # the specification's own limit
MAX_NAME = 256  # ggml's own limit is 63
MAX_TEXT = 1 << 26
MAX_DIMS = 4  # ggml's GGML_MAX_DIMS
MAX_SIZE = 1 << 63

# The least bytes a record can take: empty key, tag, one-byte value; empty name, one dimension.
_LEAST_RECORD = 8 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 8 + 4 + 8

_BY_ID = {kind.id: kind for kind in BlockType}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` in GGUF order `[in, out]`, `offset` from the file's first byte."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the data; tensor offsets here are still relative to it."""

    version: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    end: int


def read_header(cursor: Cursor) -> Header:
    """Parse the head; raises FormatError for anything that breaks the format."""
    version = _read_version(cursor)
    tensors = cursor.count(MAX_TENSORS, 0, "tensors")
    records = cursor.count(MAX_RECORDS, _LEAST_RECORD, "metadata records")
    metadata = _read_metadata(cursor, records)
    cursor.need(tensors * _LEAST_TENSOR, f"{tensors} tensor records")
    infos: dict[str, TensorInfo] = {}
    for _ in range(tensors):
        info = _read_tensor(cursor)
        if info.name in infos:
            raise cursor.fail(f"the tensor {info.name!r} is listed twice.")
        infos[info.name] = info
    return Header(version, metadata, infos, cursor.at)


def _read_version(cursor: Cursor) -> int:
    cursor.need(8, "the magic and version")
    if cursor.view[:4] != MAGIC:
        raise cursor.fail(
            f"this is not a GGUF file (it begins with {bytes(cursor.view[:4])!r}).",
            "Give a file whose name ends in .gguf, as its publisher made it.",
        )
    cursor.at = 4
    version = cursor.u32("the version")
    if version in VERSIONS:
        return version
    if version.to_bytes(4, "big") in [v.to_bytes(4, "little") for v in VERSIONS]:
        raise cursor.fail("this GGUF file is big-endian.", "Convert it to little-endian.")
    raise cursor.fail(f"GGUF version {version} is not supported.", "Use a file of version 2 or 3.")


def _read_metadata(cursor: Cursor, records: int) -> Metadata:
    values: dict[str, Value] = {}
    types: dict[str, ValueType] = {}
    reader = _ValueReader(cursor)
    for _ in range(records):
        key = decode(cursor.text(MAX_KEY, "a metadata key"), f"a key of {cursor.path}")
        if key in values:
            raise cursor.fail(f"the metadata key {key!r} is listed twice.")
        kind = reader.kind(key)
        values[key] = reader.value(kind, key)
        types[key] = kind
    return Metadata(values, types)


class _ValueReader:
    """Reads values, counting the arrays inside arrays of the whole file."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._arrays = 0

    def kind(self, key: str) -> ValueType:
        tag = self._cursor.u32(f"the value type of {key!r}")
        try:
            return ValueType(tag)
        except ValueError:
            raise self._cursor.fail(f"the value type {tag} of {key!r} is unknown.") from None

    def value(self, kind: ValueType, key: str) -> Value:
        if kind is ValueType.ARRAY:
            return self._array(key, 1)
        if kind is ValueType.STRING:
            text = self._cursor.text(MAX_TEXT, f"the value of {key!r}")
            return decode(text, f"{key!r} in {self._cursor.path}")
        value: Value = self._numbers(kind, 1, key)[0].item()
        return value

    def _array(self, key: str, depth: int) -> Value:
        cursor = self._cursor
        kind = self.kind(key)
        least = {ValueType.STRING: 8, ValueType.ARRAY: 12}.get(kind, 1)
        count = cursor.count(MAX_ITEMS, least, f"items of {key!r}")
        if kind is ValueType.STRING:
            starts = cursor.string_starts(count, f"the array {key!r}")
            return Strings(cursor.view, starts, f"{key!r} in {cursor.path}")
        if kind is not ValueType.ARRAY:
            return self._numbers(kind, count, key)
        self._arrays += count
        if depth == MAX_NESTING or self._arrays > MAX_ARRAYS:
            raise cursor.fail(f"the arrays inside {key!r} are nested too deep or too many.")
        return tuple(self._array(key, depth + 1) for _ in range(count))

    def _numbers(self, kind: ValueType, count: int, key: str) -> NDArray[np.generic]:
        what = f"the value of {key!r}"
        if kind is not ValueType.BOOL:
            return self._cursor.numbers(DTYPES[kind], count, what)
        flags = self._cursor.numbers(DTYPES[ValueType.U8], count, what)
        if np.any(flags.view(np.uint8) > 1):
            raise self._cursor.fail(f"{what} holds a bool that is neither 0 nor 1.")
        return flags.view(np.bool_)


def _read_tensor(cursor: Cursor) -> TensorInfo:
    name = decode(cursor.text(MAX_NAME, "a tensor name"), f"a tensor name of {cursor.path}")
    dims = cursor.u32(f"the rank of {name!r}")
    if not 1 <= dims <= MAX_DIMS:
        raise cursor.fail(f"the tensor {name!r} has {dims} dimensions, not 1 to {MAX_DIMS}.")
    shape = cursor.u64s(dims, f"the shape of {name!r}")
    kind = _BY_ID.get(tag := cursor.u32(f"the type of {name!r}"))
    if kind is None:
        raise cursor.fail(
            f"the tensor {name!r} has the unknown type {tag}.",
            "Use a file quantised to one of the usual types, for example Q4_K_M.",
        )
    offset = cursor.u64(f"the offset of {name!r}")
    return TensorInfo(name, shape, kind, offset, _tensor_bytes(cursor, name, shape, kind))


def _tensor_bytes(cursor: Cursor, name: str, shape: tuple[int, ...], kind: BlockType) -> int:
    elements = 1
    for extent in shape:
        elements *= extent
    if not 0 < elements < MAX_SIZE or shape[0] % kind.elements:
        raise cursor.fail(
            f"the tensor {name!r} cannot have the shape {list(shape)} in {kind.name} blocks"
            f" of {kind.elements}."
        )
    return elements // kind.elements * kind.bytes
