"""What stands in a file of packed weights, `<key>.packed`:

    head     one line of JSON, padded to a page: all that decided the panels
    panels   each tensor's, at a multiple of a page
    record   JSON to the end: where the model lay and in what state it was read, and of each tensor
             the BLAKE3 of its bytes in the model and of its panels

The key is the hash of the head. A file takes its name when all of it is written.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from muser.weights.panels import AT_ONCE, Panels

VERSION = 2  # of head and record
LAYOUT = "panels of 16, 2"  # of the panels; changes with `pack.h`
PAGE = 4096
LARGEST_LINE = 64 << 20  # bytes of a head or a record that are read
NAME = re.compile(r"[0-9a-f]{32}\.packed", re.ASCII)
UNFINISHED = re.compile(r"\.packing-[a-z0-9_]{8}", re.ASCII)

SOURCE = ("device", "inode", "bytes", "modified_ns")

Packed = Mapping[str, NDArray[np.uint8]]


def about(model: os.stat_result) -> dict[str, int]:
    """What tells one model file from another without reading it whole."""
    values = (model.st_dev, model.st_ino, model.st_size, model.st_mtime_ns)
    return dict(zip(SOURCE, values, strict=True))


class OtherVersionError(ValueError):
    """A file whose panels these kernels do not read."""

    def __init__(self, layout: str) -> None:
        super().__init__("made for another version of Muser")
        self.layout = layout


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every tensor's panels go: `offsets` in bytes; the record begins at `size`."""

    head: bytes
    panels: tuple[Panels, ...]
    offsets: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, panels: tuple[Panels, ...], source: Mapping[str, int]) -> "Plan":
        """`source`: see `about`."""
        tensors = [[each.name, each.type, each.count, each.bytes_each] for each in panels]
        parts = {"file": VERSION, "layout": LAYOUT, "source": dict(source), "tensors": tensors}
        line = json.dumps(parts, sort_keys=True).encode()
        return cls._laid_out(line + b" " * (-(len(line) + 1) % PAGE) + b"\n", panels)

    @classmethod
    def read(cls, file: BinaryIO) -> tuple["Plan", dict[str, int]]:
        """The plan by which a file was made, and of what. Raises `OtherVersionError`, and
        `ValueError` for what is no such file."""
        head = file.readline(LARGEST_LINE)
        parts = _parsed(head)
        if (parts.get("file"), parts.get("layout")) != (VERSION, LAYOUT):
            raise OtherVersionError(str(parts.get("layout")))
        try:
            panels = tuple(map(_panels, parts["tensors"]))
            source = {name: int(parts["source"][name]) for name in SOURCE}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("damaged: its head is none") from error
        return cls._laid_out(head, panels), source

    @classmethod
    def _laid_out(cls, head: bytes, panels: tuple[Panels, ...]) -> "Plan":
        offsets, at = [], len(head)
        for each in panels:
            offsets.append(at)
            at += -(-each.size // PAGE) * PAGE
        return cls(head, panels, tuple(offsets), at)

    @property
    def key(self) -> str:
        return hashlib.sha256(self.head).hexdigest()[:32]

    def cut(self, data: NDArray[np.uint8]) -> Packed:
        """Tensor name to its bytes, out of the whole file's."""
        return MappingProxyType(
            {
                panels.name: data[at : at + panels.size]
                for panels, at in zip(self.panels, self.offsets, strict=True)
            }
        )


@dataclass(frozen=True, slots=True)
class Record:
    """`model`: its path when it was packed; `state`: see `state_of`; `digests`: tensor name to the
    BLAKE3 of its bytes in the model, and of its panels, hexadecimal."""

    model: str
    state: str
    digests: Mapping[str, tuple[str, str]]

    def written(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, file: BinaryIO, plan: Plan) -> "Record":
        """Raises `ValueError` for what is no record of these tensors."""
        file.seek(plan.size)
        parts = _parsed(file.read(LARGEST_LINE))
        try:
            digests = {str(name): (str(a), str(b)) for name, (a, b) in parts["digests"].items()}
            record = cls(str(parts["model"]), str(parts["state"]), digests)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError("damaged: its record is none") from error
        if set(digests) != {each.name for each in plan.panels}:
            raise ValueError("damaged: its record is of other tensors")
        return record


def digest(data: NDArray[np.uint8]) -> str:
    """BLAKE3, hexadecimal."""
    from blake3 import blake3  # needed where something is packed or verified

    return blake3(data.data).hexdigest()


def digest_of(file: BinaryIO, size: int) -> str:
    """The same of the next `size` bytes of a file, or of all that are left."""
    from blake3 import blake3

    hasher = blake3()
    while piece := file.read(min(size, AT_ONCE)):
        hasher.update(piece)
        size -= len(piece)
    return hasher.hexdigest()


def _parsed(raw: bytes) -> dict[str, Any]:
    try:  # behind a head of version 1 stands no line feed
        parts, _ = json.JSONDecoder().raw_decode(raw.decode("ascii", "replace"))
    except (ValueError, RecursionError) as error:
        raise ValueError("damaged: a line of it is no JSON") from error
    if not isinstance(parts, dict):
        raise ValueError("damaged: a line of it is no object")
    return parts


def _panels(fields: Any) -> Panels:
    name, kind, count, bytes_each = fields
    if not (type(name) is type(kind) is str and type(count) is type(bytes_each) is int):
        raise TypeError("not the fields of a tensor")
    if min(count, bytes_each) < 1:
        raise ValueError("a tensor without bytes")
    return Panels(name, kind, count, bytes_each)


def write_whole(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done


@contextmanager
def rising(path: Path) -> Iterator[int]:
    """A descriptor of a new file that takes the name `path` when all of it is written, or leaves
    nothing."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".packing-")
    try:
        yield descriptor
        os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
