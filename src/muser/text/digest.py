"""A digest of everything in a file that decides how text becomes ids (`spec`: section 13.5).

SHA-256 over `muser.gguf-tokenizer-metadata.v1`, NUL, then for each key that begins with
`tokenizer.`, the chat template left out, in byte order: u64 length, key, value. A value is a tag
byte and its bits, little-endian; a string adds its u64 length before the bytes, an array its u64
count before its items, each with its own tag. Tags: u8 0, i8 1, u16 2, i16 3, u32 4, i32 5, u64 6,
i64 7, f32 8, f64 9, bool 10, string 11, array 12.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from muser.formats import ValueType, array_type, natural_type, type_of
from muser.text.strings import tagged

DOMAIN = b"muser.gguf-tokenizer-metadata.v1\0"
PREFIX = "tokenizer."
TEMPLATE_KEY = "tokenizer.chat_template"

_BITS: Mapping[ValueType, str] = {
    ValueType.U8: "u1",
    ValueType.I8: "i1",
    ValueType.U16: "<u2",
    ValueType.I16: "<i2",
    ValueType.U32: "<u4",
    ValueType.I32: "<i4",
    ValueType.U64: "<u8",
    ValueType.I64: "<i8",
    ValueType.F32: "<f4",
    ValueType.F64: "<f8",
    ValueType.BOOL: "?",
}
"""NumPy's name for the bits of each fixed-width type, in the order of the tags."""

_TAGS = {kind: tag for tag, kind in enumerate((*_BITS, ValueType.STRING, ValueType.ARRAY))}


def metadata_digest(metadata: Mapping[str, Any]) -> str:
    """The digest as 64 hexadecimal digits."""
    digest = sha256(DOMAIN)
    for key in sorted(metadata, key=str.encode):
        if key.startswith(PREFIX) and key != TEMPLATE_KEY:
            digest.update(_sized(key.encode("utf-8")))
            digest.update(_value(metadata[key], type_of(metadata, key)))
    return digest.hexdigest()


def _sized(raw: bytes) -> bytes:
    return len(raw).to_bytes(8, "little") + raw


def _value(value: Any, kind: ValueType) -> bytes:
    tag = bytes([_TAGS[kind]])
    if kind is ValueType.STRING:
        return tag + _sized(value.encode("utf-8"))
    if kind is ValueType.ARRAY:
        return tag + len(value).to_bytes(8, "little") + _items(value)
    return tag + np.asarray(value, _BITS[kind]).tobytes()


def _items(values: Any) -> bytes:
    if isinstance(values, np.ndarray):
        kind = array_type(values)
        rows = np.empty(len(values), [("tag", "u1"), ("bits", _BITS[kind])])
        rows["tag"], rows["bits"] = _TAGS[kind], values
        return rows.tobytes()
    if isinstance(values, Sequence) and all(isinstance(item, str) for item in values[:1]):
        return tagged(values, _TAGS[ValueType.STRING])
    return b"".join(_value(item, natural_type(item)) for item in values)
