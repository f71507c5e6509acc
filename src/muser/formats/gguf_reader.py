"""A GGUF file over mmap: metadata, tensor records and zero-copy views of the data."""

import os
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from muser.errors import FormatError, UsageError
from muser.formats.cursor import Cursor, MoreNeeded
from muser.formats.gguf_header import Header, TensorInfo, read_header
from muser.formats.gguf_values import Metadata
from muser.formats.mapped import MappedFile

DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
HEAD = 2 << 20  # bytes read at first: a vocabulary of 49,000 tokens takes 1.8 million
MAX_HEAD = HEAD * 8**2  # 128 MiB


class GgufFile:
    """An open GGUF file. Every count, length and offset was checked when it was opened.

    Views handed out by `raw` keep the mapping alive after `close`; the file must not be shortened
    while they live. The metadata are a copy of the file's.
    """

    __slots__ = (
        "_data",
        "_mapped",
        "alignment",
        "data_offset",
        "metadata",
        "path",
        "size",
        "tensors",
        "version",
    )

    def __init__(self, mapped: MappedFile) -> None:
        cursor, header = _read_head(mapped)
        self._mapped = mapped
        self._data: memoryview | None = mapped.view
        self.path = mapped.path
        self.size = mapped.size
        self.version = header.version
        self.metadata: Metadata = header.metadata
        self.alignment = _alignment(cursor, header)
        self.data_offset = -(-header.end // self.alignment) * self.alignment
        self.tensors = MappingProxyType(_place(cursor, header, self.data_offset, self.alignment))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "GgufFile":
        """Map and check `path`.

        Raises UsageError if it cannot be opened, FormatError if its bytes break the format.
        """
        return cls(MappedFile(Path(path)))

    def verify_unchanged(self) -> None:
        """Raises FormatError if the file was shortened or written to since it was opened."""
        self._mapped.verify_unchanged()

    @property
    def identity(self) -> str:
        """64 hexadecimal digits for this state of this file: see `state_of`."""
        return self._mapped.identity

    @property
    def opened(self) -> os.stat_result:
        """What the system said of this file when it was opened."""
        return self._mapped.opened

    @property
    def whole(self) -> NDArray[np.uint8]:
        """All its bytes as they are mapped, `uint8[size]`, read-only."""
        return np.frombuffer(self._mapped.view, np.uint8)

    def lost(self) -> FormatError:
        """What to say where bytes of a view could not be read."""
        return self._mapped.lost()

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of tensor `name`, `uint8[size]`, read-only, not copied."""
        if self._data is None:
            raise UsageError(f"{self.path} was closed.", "Open it again to read its tensors.")
        info = self.tensors[name]
        return np.frombuffer(self._data, np.uint8, info.size, info.offset)

    def read_into(self, name: str, first: int, target: NDArray[np.uint8]) -> None:
        """Fills `target`, uint8, with the bytes of tensor `name` from its byte `first` on.

        Past the mapping, so bytes that are gone are a `FormatError`; from several threads at once.
        """
        info = self.tensors[name]
        assert 0 <= first <= first + target.size <= info.size
        self._mapped.read_into(target.data, info.offset + first)

    def close(self) -> None:
        """Let go of the mapping; it ends with the last view of it."""
        self._data = None

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GgufFile {self.path}: {len(self.tensors)} tensors>"


def _read_head(mapped: MappedFile) -> tuple[Cursor, Header]:
    """The head from as many of the first bytes as it takes."""
    length = HEAD
    while True:
        cursor = Cursor(mapped.head(length), mapped.path, mapped.size)
        try:
            return cursor, read_header(cursor)
        except MoreNeeded:
            if length >= MAX_HEAD:
                raise cursor.fail(f"its head is longer than {MAX_HEAD} bytes.") from None
            length *= 8


def _alignment(cursor: Cursor, header: Header) -> int:
    value = header.metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if type(value) is not int or value <= 0 or value & (value - 1) or value > 1 << 31:
        raise cursor.fail(f"{ALIGNMENT_KEY} is {value!r}, not a power of two.")
    return value


def _place(cursor: Cursor, header: Header, start: int, alignment: int) -> dict[str, TensorInfo]:
    """Tensors in file order at absolute offsets, checked against the file and one another."""
    placed = {}
    for info in header.tensors.values():
        if info.offset % alignment:
            raise cursor.fail(f"the tensor {info.name!r} is not aligned to {alignment} bytes.")
        end = start + info.offset + info.size
        if end > cursor.end:
            raise cursor.fail(
                f"the tensor {info.name!r} ends at byte {end}, the file at {cursor.end}."
            )
        placed[info.name] = TensorInfo(
            info.name, info.shape, info.type, start + info.offset, info.size
        )
    _check_overlap(cursor, placed)
    return placed


def _check_overlap(cursor: Cursor, tensors: dict[str, TensorInfo]) -> None:
    ordered = sorted(tensors.values(), key=lambda info: info.offset)
    for left, right in pairwise(ordered):
        if left.offset + left.size > right.offset:
            raise cursor.fail(f"the tensors {left.name!r} and {right.name!r} overlap.")
