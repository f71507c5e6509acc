"""Compiled libraries on disk, under a key of everything that decides their bytes.

An entry is `<key>.so` beside `<key>.json` (`about.py`), both put in place by rename, by one process
at a time. What does not match its hash, or could have been written by others, is built again. Small
notes (a passed conformance run) stand beside the libraries.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from muser.kernels.about import About, read, written
from muser.kernels.trust import DistrustError, check_folder, read_trusted
from muser.locking import held, seen

PATIENCE_SECONDS = 1.0
MODE = 0o755

log = logging.getLogger("muser.kernels")


@dataclass(frozen=True, slots=True)
class Shelved:
    """A library: its bytes, their SHA-256, and where they lie; None if no folder took them."""

    path: Path | None
    sha256: str
    data: bytes = field(repr=False)


@dataclass
class Shelf:
    """`folder` is made when first needed; where it cannot be used, what is made serves one run."""

    folder: Path
    _is_shut: bool = field(default=False, repr=False)
    _notes: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def keeps(self) -> bool:
        """Whether what is made now will be there for later processes, as far as is known."""
        return not self._is_shut

    def take(self, key: str, build: Callable[[Path], None], about: About) -> Shelved:
        """The library of `key`; `build(path)` makes it if it is absent, damaged or not ours."""
        files = [self.folder / f"{key}{ending}" for ending in (".so", ".json")]
        before = [seen(file) for file in files]
        found = self._find(key)
        if found is not None:
            return found
        with self._alone():
            # Another process may have made it meanwhile; what was refused is not refused twice.
            if [seen(file) for file in files] != before:
                found = self._find(key)
            return found or self._put(key, _built(build), about)

    def _find(self, key: str) -> Shelved | None:
        path = self.folder / f"{key}.so"
        if not self._is_trusted():
            return None
        try:
            sha256, _ = read(read_trusted(self.folder / f"{key}.json"))
            data = read_trusted(path)
        except FileNotFoundError:
            return None
        except DistrustError as problem:
            log.warning("%s %s; it is built again.", path, problem)
            return None
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read (%s); it is built again.", path, error)
            return None
        if hashlib.sha256(data).hexdigest() == sha256:
            return Shelved(path, sha256, data)
        log.warning("%s does not match its hash; it is built again.", path)
        return None

    def _is_trusted(self) -> bool:
        """Whether there is a folder that others cannot have written into."""
        try:
            check_folder(self.folder)
        except DistrustError as problem:
            self._shut(f"{problem}, so nothing in it is used")
            return False
        except OSError:
            return False
        return True

    def _put(self, key: str, data: bytes, about: About) -> Shelved:
        sha256 = hashlib.sha256(data).hexdigest()
        if self._opens():
            path = self.folder / f"{key}.so"
            try:
                _write_atomically(self.folder / f"{key}.json", written(about, sha256).encode())
                _write_atomically(path, data, MODE)
                return Shelved(path, sha256, data)
            except OSError as error:
                self._shut(f"cannot take a library ({error.strerror})")
        return Shelved(None, sha256, data)

    def _opens(self) -> bool:
        """Whether the folder takes files of ours; said once if it does not."""
        if self._is_shut:
            return False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            self._shut(f"cannot be written ({error.strerror})")
            return False
        return self._is_trusted()

    def _shut(self, reason: str) -> None:
        if not self._is_shut:
            log.warning("%s %s; libraries are compiled for this run only.", self.folder, reason)
        self._is_shut = True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process compiles at a time; where there are no locks, renaming keeps files whole."""
        with ExitStack() as stack:
            if self._opens():
                try:
                    stack.enter_context(held(self.folder / ".lock", self._wait, PATIENCE_SECONDS))
                except OSError:
                    log.debug("%s has no locks.", self.folder)
            yield

    def _wait(self, holder: str) -> None:
        log.info("Waiting for %s, which compiles kernels into %s.", holder, self.folder)

    def note(self, name: str) -> str | None:
        """A remembered word, or None."""
        if name in self._notes:
            return self._notes[name]
        if not self._is_trusted():
            return None
        try:
            return read_trusted(self.folder / f"{name}.note").decode()
        except (OSError, UnicodeDecodeError, DistrustError):
            return None

    def remember(self, name: str, word: str) -> None:
        """Keep a word for later processes; a folder that will not take it costs only time."""
        self._notes[name] = word
        if not self._opens():
            return
        try:
            _write_atomically(self.folder / f"{name}.note", word.encode())
        except OSError as error:
            log.warning("%s cannot be noted in %s (%s).", name, self.folder, error.strerror)


def _built(build: Callable[[Path], None]) -> bytes:
    """What `build` writes, in a folder of its own: the shelf meets finished files only."""
    with tempfile.TemporaryDirectory(prefix="muser-") as folder:
        path = Path(folder) / "library.so"
        build(path)
        return read_trusted(path)


def _write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, mode)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
