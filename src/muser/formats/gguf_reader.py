"""A GGUF file over mmap: metadata, tensor records and zero-copy views of the data."""

import mmap
import os
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
from numpy.typing import NDArray

from muser.errors import UsageError
from muser.formats.cursor import Cursor
from muser.formats.gguf_header import Header, TensorInfo, read_header
from muser.formats.gguf_values import Metadata

DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"


class GgufFile:
    """An open GGUF file. Every count, length and offset was checked when it was opened.

    Views handed out by `raw`, and string arrays of `metadata`, keep the mapping alive after
    `close`; the file must not be shortened while they live.
    """

    __slots__ = (
        "_data",
        "alignment",
        "data_offset",
        "metadata",
        "path",
        "size",
        "tensors",
        "version",
    )

    def __init__(self, path: Path, data: memoryview) -> None:
        cursor = Cursor(data, path)
        header = read_header(cursor)
        self._data: memoryview | None = data
        self.path = path
        self.size = len(data)
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
        where = Path(path)
        return cls(where, _map(where))

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of tensor `name`, `uint8[size]`, read-only, not copied."""
        if self._data is None:
            raise UsageError(f"{self.path} was closed.", "Open it again to read its tensors.")
        info = self.tensors[name]
        return np.frombuffer(self._data, np.uint8, info.size, info.offset)

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


def _map(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")  # an empty file cannot be mapped
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be opened: {error.strerror}.", "Check the path and its permissions."
        ) from error


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
