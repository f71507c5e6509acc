"""String arrays of a file taken whole: hundreds of thousands of items in a few array operations."""

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from muser.formats import Strings


def are_texts(value: object) -> TypeGuard[Sequence[str]]:
    """Whether a metadata value is an array of strings; one of numbers or of arrays is not."""
    if isinstance(value, Strings):
        return True
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def joined(texts: Sequence[str]) -> bytes:
    """All items with a line feed between them, `\\n`.join in bytes."""
    if not isinstance(texts, Strings):
        return "\n".join(texts).encode("utf-8", "surrogateescape")
    records, starts = texts.records()
    keep = np.ones(len(records), np.bool_)
    for byte in range(7):
        keep[starts + byte] = False
    lines = records.copy()
    lines[starts + 7] = 0x0A
    return lines[keep].tobytes()[1:]


def tagged(texts: Sequence[str], tag: int) -> bytes:
    """Each item as `u8 tag, u64 length, bytes`."""
    if not isinstance(texts, Strings):
        return b"".join(_record(text.encode("utf-8"), tag) for text in texts)
    records, starts = texts.records()
    tags: NDArray[np.uint8] = np.full(len(starts), tag, np.uint8)
    return np.insert(records, starts, tags).tobytes()


def _record(raw: bytes, tag: int) -> bytes:
    return bytes([tag]) + len(raw).to_bytes(8, "little") + raw
