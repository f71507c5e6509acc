"""Packed weights: a mapped file made once for a model file, or memory where nothing can be kept.

The file is `<key>.packed`: a line of JSON that says everything that decided its bytes (padded with
spaces to a page), then each tensor's panels at a multiple of a page. The key is the hash of that
line. A file whose first page or size differs from what is expected, or whose first panel of a
tensor is not what packing gives now, is made again; it is put in place by rename.
"""

import errno
import hashlib
import json
import logging
import mmap
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muser.kernels import Library, zeros
from muser.weights.panels import AT_ONCE, Packer, Panels, TensorSource

log = logging.getLogger("muser.weights")
LAYOUT = "panels of 16, 2"  # changes with `pack.h`
PAGE = 4096
KEPT_FROM = 8 << 20  # bytes: what is smaller is packed into memory at each load

Packed = Mapping[str, NDArray[np.uint8]]
Mapped = Callable[[Path, NDArray[np.uint8]], None]
"""Is told of a file and its bytes as they are mapped, before any of them is read."""


class PackSource(TensorSource, Protocol):
    """`origin`: the file the tensors lie in, as it was opened; None for tensors without one."""

    @property
    def origin(self) -> os.stat_result | None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every tensor's panels go: `offsets` in bytes, `size` of the whole file."""

    head: bytes
    panels: tuple[Panels, ...]
    offsets: tuple[int, ...]
    size: int

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


def pack(
    library: Library,
    source: PackSource,
    names: Sequence[str],
    folder: Path,
    threads: int,
    mapped: Mapped | None = None,
) -> Packed:
    """The tensors `names` in panels, uint8; from `folder` if they were packed there before.

    What is made says so in the log: its size, and how much memory that takes meanwhile.
    """
    packer = Packer(library)
    panels = tuple(packer.layout(source.tensor(name)) for name in dict.fromkeys(names))
    origin = source.origin
    if origin is None or sum(each.size for each in panels) < KEPT_FROM:
        return _in_memory(packer, source, panels, threads)
    plan = _plan(panels, _about(origin))
    path = folder / f"{plan.key}.packed"
    kept = _open(path, plan, mapped)
    if kept is not None and _begins_right(packer, source, plan, kept):
        return kept
    try:
        _make(packer, source, plan, path, threads)
        kept = _open(path, plan, mapped)
        if kept is None:
            raise OSError(errno.EIO, "the file changed while it was written", str(path))
        return kept
    except OSError as error:
        log.warning(
            "%s cannot take the packed weights (%s); %.0f MB of memory hold them, at each load.",
            folder,
            error.strerror or error,
            plan.size / 1e6,
        )
        return _in_memory(packer, source, panels, threads)


def _about(origin: os.stat_result) -> dict[str, int | str]:
    """What tells one model file from another without reading it whole."""
    return {
        "device": origin.st_dev,
        "inode": origin.st_ino,
        "bytes": origin.st_size,
        "modified_ns": origin.st_mtime_ns,
    }


def _plan(panels: tuple[Panels, ...], about: dict[str, int | str]) -> Plan:
    tensors = [[each.name, each.type, each.count, each.bytes_each] for each in panels]
    line = json.dumps({"layout": LAYOUT, "source": about, "tensors": tensors}, sort_keys=True)
    head = line.encode()
    head += b" " * (-len(head) % PAGE)
    offsets, at = [], len(head)
    for each in panels:
        offsets.append(at)
        at += -(-each.size // PAGE) * PAGE
    return Plan(head, panels, tuple(offsets), at)


def _in_memory(
    packer: Packer, source: TensorSource, panels: tuple[Panels, ...], threads: int
) -> Packed:
    def whole(each: Panels) -> NDArray[np.uint8]:
        out, at = zeros(each.size, np.uint8), 0
        for piece in packer.pieces(source, each):
            out[at : at + piece.size] = piece
            at += piece.size
        return out

    from concurrent.futures import ThreadPoolExecutor  # costly import, needed by few

    with ThreadPoolExecutor(threads) as pool:
        return MappingProxyType(
            dict(zip((each.name for each in panels), pool.map(whole, panels), strict=True))
        )


def _open(path: Path, plan: Plan, mapped: Mapped | None) -> Packed | None:
    """The mapped file if it is ours and is what `plan` says; None otherwise."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            found = os.fstat(file.fileno())
            trusted = not hasattr(os, "getuid") or found.st_uid == os.getuid()
            plain = stat.S_ISREG(found.st_mode) and not found.st_mode & stat.S_IWOTH
            if not (trusted and plain and found.st_size == plan.size):
                log.warning("%s is not what was put there; it is made again.", path)
                return None
            if file.read(len(plan.head)) != plan.head:
                log.warning("%s is damaged; it is made again.", path)
                return None
            mapping = mmap.mmap(file.fileno(), plan.size, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: it is shorter by now
        log.warning("%s cannot be read (%s).", path, error)
        return None
    data = np.frombuffer(mapping, np.uint8)
    if mapped is not None:
        mapped(path, data)
    return plan.cut(data)


def _begins_right(packer: Packer, source: TensorSource, plan: Plan, kept: Packed) -> bool:
    """The first panel of every tensor, packed now, against what was kept."""
    for each in plan.panels:
        first = packer.first(source, each)
        if first is not None and not np.array_equal(first, kept[each.name][: first.size]):
            log.warning("The packed %s is not this model's; it is made again.", each.name)
            return False
    return True


def _make(packer: Packer, source: TensorSource, plan: Plan, path: Path, threads: int) -> None:
    from concurrent.futures import ThreadPoolExecutor  # costly import, needed by few

    log.info(
        "Packing the weights for this processor: %.0f MB in %s, once for this model;"
        " at most %.0f MB of memory meanwhile.",
        plan.size / 1e6,
        path,
        _meanwhile(plan.panels, threads) / 1e6,
    )
    with _rising(path) as file:
        os.truncate(file, plan.size)
        _write_whole(file, memoryview(plan.head), 0)

        def put(each: Panels, at: int) -> None:
            for piece in packer.pieces(source, each):
                _write_whole(file, piece.data, at)
                at += piece.size

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(put, plan.panels, plan.offsets))


def _meanwhile(panels: tuple[Panels, ...], threads: int) -> int:
    """Bytes of memory that packing takes at most: two pieces for each thread, and all codes of the
    float tensors that it snaps."""
    piece = 2 * max(AT_ONCE, max(each.bytes_each for each in panels))
    snapped = sorted((each.size for each in panels if each.is_snapped), reverse=True)
    return threads * piece + sum(snapped[:threads])


def _write_whole(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(descriptor, data, at)
        data, at = data[done:], at + done


@contextmanager
def _rising(path: Path) -> Iterator[int]:
    """A descriptor of a new file that takes the name `path` when all of it is written, or leaves
    nothing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
