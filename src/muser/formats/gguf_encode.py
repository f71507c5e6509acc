"""Metadata records and tensor records as bytes: `gguf_header` read backwards."""

import struct
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from muser.errors import FormatError
from muser.formats.gguf_header import MAGIC, TensorInfo
from muser.formats.gguf_values import DTYPES, Strings, Value, ValueType, array_type, type_of

VERSION = 3


def encode_head(metadata: Mapping[str, Value], infos: Sequence[TensorInfo]) -> bytes:
    """The head up to the last tensor record; `infos` offsets are relative to the data.

    Raises FormatError for a value that GGUF cannot hold.
    """
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(infos), len(metadata))]
    for key in metadata:
        kind = type_of(metadata, key)
        parts += [_text(key), struct.pack("<I", kind), _value(key, metadata[key], kind)]
    for info in infos:
        dims = struct.pack(f"<I{len(info.shape)}Q", len(info.shape), *info.shape)
        parts += [_text(info.name), dims, struct.pack("<IQ", info.type.id, info.offset)]
    return b"".join(parts)


def _text(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: Value, kind: ValueType) -> bytes:
    if kind is ValueType.STRING and isinstance(value, str):
        return _text(value)
    if kind is ValueType.ARRAY and isinstance(value, Sequence | np.ndarray):
        return _array(key, value)
    if isinstance(value, bool | int | float | np.generic) and kind in DTYPES:
        return np.asarray(value).astype(DTYPES[kind]).tobytes()
    raise _unholdable(key, value)


def _array(key: str, value: "Sequence[Value] | Sequence[str] | NDArray[np.generic]") -> bytes:
    if not isinstance(value, np.ndarray | Strings):
        value = _homogeneous(key, value)
    if isinstance(value, np.ndarray):
        kind = array_type(value)
        return _array_head(kind, value.size) + value.astype(DTYPES[kind]).tobytes()
    if isinstance(value, Strings):
        items = (_text(value.raw_bytes(i)) for i in range(len(value)))
        return _array_head(ValueType.STRING, len(value)) + b"".join(items)
    if all(isinstance(item, str) for item in value):
        texts = (_text(item) for item in value if isinstance(item, str))
        return _array_head(ValueType.STRING, len(value)) + b"".join(texts)
    nested = (_value(key, item, ValueType.ARRAY) for item in value)
    return _array_head(ValueType.ARRAY, len(value)) + b"".join(nested)


def _homogeneous(
    key: str, value: "Sequence[Value] | Sequence[str]"
) -> "Sequence[Value] | Sequence[str] | NDArray[np.generic]":
    """Plain numbers as an array of the width that converters use: i32, f32 or bool."""
    kinds = {type(item) for item in value}
    if kinds == {bool}:
        return np.array(value, np.bool_)
    if kinds == {float}:
        return np.array(value, "<f4")
    if kinds == {int}:
        wide = np.array(value, "<i8")
        narrow = wide.astype("<i4")
        return narrow if np.array_equal(wide, narrow) else wide
    if kinds <= {str} or all(isinstance(item, Sequence | np.ndarray) for item in value):
        return value
    raise _unholdable(key, value)


def _array_head(kind: ValueType, count: int) -> bytes:
    return struct.pack("<IQ", kind, count)


def _unholdable(key: str, value: object) -> FormatError:
    return FormatError(
        f"The metadata value {value!r} of {key!r} has no form in GGUF.",
        "Give numbers, text, or arrays whose items all have one type.",
    )
