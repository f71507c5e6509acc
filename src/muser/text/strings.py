"""String arrays of a file taken whole: hundreds of thousands of items in a few array operations."""

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from muser.errors import FormatError, UsageError
from muser.formats import Strings

# Line feed first: few vocabularies hold another control character alone, some hold this one.
_SEPARATORS = (0x0A, *range(0x0A), *range(0x0B, 0x20))


def are_texts(value: object) -> TypeGuard[Sequence[str]]:
    """Whether a metadata value is an array of strings; one of numbers or of arrays is not."""
    if isinstance(value, Strings):
        return True
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


class Table(NamedTuple):
    """All items as bytes: item i is `raw[starts[i]:ends[i]]`, and no item begins at 0."""

    raw: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def read_table(texts: Sequence[str]) -> Table:
    """A string array for array operations; that of a file is not copied."""
    if not isinstance(texts, Strings):
        items = [text.encode("utf-8", "surrogateescape") for text in texts]
        ends = np.cumsum([1 + len(item) for item in items], dtype=np.int64)
        sizes = np.array([len(item) for item in items], np.int64)
        return Table(np.frombuffer(b"\0" + b"\0".join(items), np.uint8), ends - sizes, ends)
    records, starts = texts.records()
    return Table(records, starts + 8, np.append(starts[1:], len(records)))


class Lines(NamedTuple):
    """All items of an array as bytes, with a separator between them that none of them holds."""

    raw: bytes
    separator: int


def read_lines(texts: Sequence[str], what: str) -> Lines:
    """All strings of an array. Raises FormatError if all control characters are in use."""
    records, at = _marked(texts)
    for separator in _SEPARATORS:
        records[at] = separator
        if np.count_nonzero(records == separator) == len(at):
            return Lines(records[1:].tobytes(), separator)
    raise FormatError(
        f"{what} holds every control character.", "Use a model with a usual vocabulary."
    )


def joined(texts: Sequence[str]) -> bytes:
    """All items with a line feed between them, `\\n`.join in bytes."""
    records, at = _marked(texts)
    records[at] = 0x0A
    return records[1:].tobytes()


def _marked(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All items with one byte free before each, and the places of those bytes."""
    if not isinstance(texts, Strings):
        items = [text.encode("utf-8", "surrogateescape") for text in texts]
        sizes = np.array([len(item) for item in items], np.int64)
        raw = bytearray(b"\0" + b"\0".join(items))
        return np.frombuffer(raw, np.uint8), np.cumsum(sizes + 1) - sizes - 1
    records, starts = texts.records()
    keep = np.ones(len(records), np.bool_)
    for byte in range(7):
        keep[starts + byte] = False
    return records[keep], starts - 7 * np.arange(len(starts))


def decoded(raw: bytes, what: str) -> str:
    """Bytes of a file's array as text. Raises FormatError naming the array."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{what} holds an entry that is not UTF-8.",
            "Fetch the file again or convert the model again.",
        ) from error


def utf8(text: str) -> bytes:
    """A prompt's bytes. Raises UsageError for a lone surrogate, which has none."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"The text holds half of a surrogate pair at character {error.start}.",
            "Decode the text as UTF-16, or remove that character.",
        ) from error


def tagged(texts: Sequence[str], tag: int) -> bytes:
    """Each item as `u8 tag, u64 length, bytes`."""
    if not isinstance(texts, Strings):
        return b"".join(_record(text.encode("utf-8"), tag) for text in texts)
    records, starts = texts.records()
    tags: NDArray[np.uint8] = np.full(len(starts), tag, np.uint8)
    return np.insert(records, starts, tags).tobytes()


def _record(raw: bytes, tag: int) -> bytes:
    return bytes([tag]) + len(raw).to_bytes(8, "little") + raw
