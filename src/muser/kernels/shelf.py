"""Compiled libraries on disk, under a key of everything that decides their bytes.

An entry is `<key>.so` beside `<key>.sha256`, both put in place by rename. What does not match its
hash is built again. Small notes (a passed conformance run) stand beside the library they are about.
"""

import errno
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LARGEST = 64 << 20  # bytes; libraries have far less than one MiB

log = logging.getLogger("muser.kernels")


@dataclass(frozen=True, slots=True)
class Shelved:
    """A library file and the SHA-256 of its bytes."""

    path: Path
    sha256: str


def digest_of(path: Path) -> str:
    """SHA-256 of a library. Raises `OSError` for what is no plain file of a library's size."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
        raise OSError(errno.EINVAL, "no plain file of a library's size", str(path))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Shelf:
    """`folder` is made when first needed; where it cannot be written, a temporary one serves."""

    folder: Path
    _refuge: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def take(self, key: str, build: Callable[[Path], None]) -> Shelved:
        """The library of `key`; `build(path)` makes it if it is absent or damaged."""
        path, stamp = self.folder / f"{key}.so", self.folder / f"{key}.sha256"
        try:
            expected = stamp.read_text().strip()
            if digest_of(path) == expected:
                return Shelved(path, expected)
            log.warning("%s does not match its hash; it is built again.", path)
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read (%s); it is built again.", path, error)
        try:
            return self._put(self.writable(), key, build)
        except OSError as error:
            return self._put(self.flee(f"cannot take a library ({error.strerror})"), key, build)

    def _put(self, folder: Path, key: str, build: Callable[[Path], None]) -> Shelved:
        handle, name = tempfile.mkstemp(prefix=f".{key}-", suffix=".so", dir=folder)
        os.close(handle)
        fresh = Path(name)
        try:
            build(fresh)
            fresh.chmod(0o755)
            sha256 = digest_of(fresh)
            _write_atomically(folder / f"{key}.sha256", sha256 + "\n")
            final = folder / f"{key}.so"
            fresh.replace(final)
        finally:
            fresh.unlink(missing_ok=True)
        return Shelved(final, sha256)

    def writable(self) -> Path:
        """The folder, or a temporary one (said once) if it cannot be written."""
        if self._refuge is not None:
            return Path(self._refuge.name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            return self.flee(f"cannot be written ({error.strerror})")
        return self.folder

    def flee(self, reason: str) -> Path:
        """Use a temporary folder from now on; `reason` completes a sentence about the folder."""
        if self._refuge is None:
            self._refuge = tempfile.TemporaryDirectory(prefix="muser-")
            log.warning("%s %s; libraries are compiled for this run only.", self.folder, reason)
        return Path(self._refuge.name)

    def note(self, name: str) -> str | None:
        """A remembered word, or None."""
        try:
            return (self.writable() / f"{name}.note").read_text()
        except (OSError, UnicodeDecodeError):
            return None

    def remember(self, name: str, word: str) -> None:
        """Keep a word for later processes; a folder that will not take it costs only time."""
        try:
            _write_atomically(self.writable() / f"{name}.note", word)
        except OSError as error:
            log.warning("%s cannot be noted in %s (%s).", name, self.folder, error.strerror)


def _write_atomically(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
