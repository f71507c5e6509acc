"""The file of one model's packed weights: found and verified, or made.

All of it is verified before it is first used: its panels against the digests that were taken as
they were packed, and the model's tensors if the model file is not in the state in which it was
packed. That it was is remembered for exactly this state of both files and this library; a file
in a remembered state is mapped without a look at its panels.
"""

import errno
import hashlib
import logging
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from muser.formats import state_of
from muser.kernels.trust import DistrustError, open_trusted
from muser.weights.bind import Memory, Origin
from muser.weights.packed_file import Packed, Plan, Record, digest, rising, write_whole
from muser.weights.panels import AT_ONCE, Packer, Panels, TensorSource

log = logging.getLogger("muser.weights")
VERIFIED = "all digests fit"
Result = TypeVar("Result")
TOLD_FROM = 1 << 30  # bytes whose digests take a person's patience

Mapped = Callable[[Path, NDArray[np.uint8]], None]
"""Is told of a file and its bytes as they are mapped, before any of them is read."""


class PackSource(TensorSource, Protocol):
    """`origin`: the file the tensors lie in, None for tensors without one; `memory`: where it is
    remembered what was verified, None for nowhere."""

    @property
    def origin(self) -> Origin | None: ...
    @property
    def memory(self) -> Memory | None: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """`path` and all that decides what has to stand there."""

    path: Path
    packer: Packer
    source: PackSource
    origin: Origin
    plan: Plan
    threads: int
    mapped: Mapped | None

    def find(self) -> Packed | None:
        """The mapped file if it is what was put there; None otherwise, which is said."""
        try:
            with open_trusted(self.path) as file:
                return self._used(file)
        except FileNotFoundError:
            return None
        except DistrustError as problem:
            reason = str(problem)
        except ValueError as problem:
            reason = f"is {problem}"
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
        log.warning("%s %s; it is made again.", self.path, reason)
        return None

    def make(self) -> Packed:
        """Packs the weights and maps the file. Raises `OSError` if the folder does not take it."""
        log.info(
            "Packing the weights for this processor: %.0f MB in %s, once for this model;"
            " at most %.0f MB of memory meanwhile.",
            self.plan.size / 1e6,
            self.path,
            _meanwhile(self.plan.panels, self.threads) / 1e6,
        )
        with rising(self.path) as file:
            self._write(file)
            self.origin.verify_unchanged()
        kept = self.find()
        if kept is None:
            raise OSError(errno.EIO, "the file changed while it was written", str(self.path))
        return kept

    def _used(self, file: BinaryIO) -> Packed:
        """Raises `ValueError` if it is not what was put there."""
        opened = os.fstat(file.fileno())
        if file.read(len(self.plan.head)) != self.plan.head:
            raise ValueError("damaged: its head is another")
        if opened.st_size <= self.plan.size:
            raise ValueError("damaged: it is cut off")
        mapping = mmap.mmap(file.fileno(), self.plan.size, access=mmap.ACCESS_READ)
        data = np.frombuffer(mapping, np.uint8)
        if self.mapped is not None:
            self.mapped(self.path, data)
        kept = self.plan.cut(data)
        memory, note = self.source.memory, self._note(state_of(opened))
        if memory is None or memory.note(note) != VERIFIED:
            self._verify(Record.read(file, self.plan), kept)
            if state_of(os.fstat(file.fileno())) != state_of(opened):
                raise ValueError("damaged: it changed while it was read")
            if memory is not None:
                memory.remember(note, VERIFIED)
        return kept

    def _note(self, state: str) -> str:
        """Changes with the state of either file, and with the library."""
        words = f"{state}\0{state_of(self.origin.opened)}\0{self.packer.library}"
        return f"packed-{hashlib.sha256(words.encode()).hexdigest()}"

    def _verify(self, record: Record, kept: Packed) -> None:
        """Raises `ValueError` for the first tensor that is not what `record` says."""
        if self.plan.size >= TOLD_FROM:
            log.info("Verifying the packed weights: %.1f GB, once.", self.plan.size / 1e9)
        same_model = record.state == state_of(self.origin.opened)

        def fault(each: Panels) -> str | None:
            of_model, of_panels = record.digests[each.name]
            if digest(kept[each.name]) != of_panels:
                return f"damaged: its panels of {each.name} are not what was put there"
            if not same_model and digest(self.source.tensor(each.name).raw) != of_model:
                return f"of another model: {each.name} was other weights"
            first = self.packer.first(self.source, each)
            if first is not None and not np.array_equal(first, kept[each.name][: first.size]):
                return f"not what packing gives now: {each.name} begins otherwise"
            return None

        for reason in self._each(fault):
            if reason is not None:
                raise ValueError(reason)

    def _write(self, file: int) -> None:
        os.truncate(file, self.plan.size)
        write_whole(file, memoryview(self.plan.head), 0)
        places = dict(zip((each.name for each in self.plan.panels), self.plan.offsets, strict=True))

        def put(each: Panels) -> tuple[str, str]:
            from blake3 import blake3

            at, hasher = places[each.name], blake3()
            for piece in self.packer.pieces(self.source, each):
                write_whole(file, piece.data, at)
                hasher.update(piece.data)
                at += piece.size
            return digest(self.source.tensor(each.name).raw), hasher.hexdigest()

        digests = dict(zip(places, self._each(put), strict=True))
        path = str(self.origin.path.absolute())
        record = Record(path, state_of(self.origin.opened), digests)
        write_whole(file, memoryview(record.written()), self.plan.size)

    def _each(self, act: Callable[[Panels], Result]) -> list[Result]:
        """What `act` makes of every tensor, on all threads."""
        from concurrent.futures import ThreadPoolExecutor  # costly import, needed by few

        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(act, self.plan.panels))


def _meanwhile(panels: tuple[Panels, ...], threads: int) -> int:
    """Bytes of memory that packing takes at most: two pieces for each thread, and all codes of the
    float tensors that it snaps."""
    piece = 2 * max(AT_ONCE, max(each.bytes_each for each in panels))
    snapped = sorted((each.size for each in panels if each.is_snapped), reverse=True)
    return threads * piece + sum(snapped[:threads])
