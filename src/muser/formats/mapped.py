"""A file's bytes, mapped, and whether they are still what they were when it was opened.

The head is read, not mapped: what is parsed cannot vanish meanwhile. Of the mapping the system may
take bytes away at any time, by shortening the file: reading those ends the process with SIGBUS.
"""

import mmap
import os
import weakref
from hashlib import sha256
from io import FileIO
from pathlib import Path

from muser.errors import FormatError, UsageError

CHANGED = "Load it again once it is whole; replace a model by renaming, not by writing into it."


def state_of(about: os.stat_result) -> str:
    """What tells this state of this file from others, as 64 hexadecimal digits.

    Of device, inode, size and both times of change: the second one nobody can set.
    """
    words = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    return sha256(repr(words).encode()).hexdigest()


class MappedFile:
    """A file held open. `view` outlives it, for as long as anybody holds a part of it."""

    __slots__ = ("__weakref__", "_file", "_opened", "path", "size", "view")

    def __init__(self, path: Path) -> None:
        """Raises `UsageError` if it cannot be opened, `FormatError` if it changes meanwhile."""
        try:
            self._file = FileIO(path)
        except OSError as error:
            raise _closed(path, error) from error
        weakref.finalize(self, self._file.close)
        self._opened = os.fstat(self._file.fileno())
        self.path = path
        self.size = self._opened.st_size
        self.view = self._map()

    @property
    def identity(self) -> str:
        """What tells this state of this file from others: see `state_of`."""
        return state_of(self._opened)

    @property
    def opened(self) -> os.stat_result:
        """What the system said of this file, whose name may mean another by now."""
        return self._opened

    def _map(self) -> memoryview:
        if self.size == 0:
            return memoryview(b"")  # an empty file cannot be mapped
        try:
            handle = self._file.fileno()
            return memoryview(mmap.mmap(handle, self.size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise _closed(self.path, error) from error
        except ValueError:
            raise self._changed() from None  # it is shorter than it was

    def head(self, length: int) -> memoryview:
        """The first bytes, `length` of them or the whole file. Raises `FormatError` as above."""
        head = memoryview(bytearray(min(length, self.size)))
        self._file.seek(0)
        done = 0
        while done < len(head):
            more = self._file.readinto(head[done:])
            if not more:
                raise self._changed()
            done += more
        return head.toreadonly()

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fills `target` with the bytes from `offset` on, past the mapping. Raises `FormatError` if
        they are gone. From several threads at once.
        """
        done = 0
        while done < len(target):
            more = os.preadv(self._file.fileno(), [target[done:]], offset + done)
            if not more:
                raise self._changed()
            done += more

    def verify_unchanged(self) -> None:
        """Raises `FormatError` if the file was shortened, or written to, since it was opened.

        Known by size and time of modification. A path that another file has been renamed to is no
        change: this file lives on for who holds it open.
        """
        about = os.fstat(self._file.fileno())
        before = self._opened
        if (about.st_size, about.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise self._changed()

    def _changed(self) -> FormatError:
        return FormatError(f"{self.path} has changed since it was opened.", CHANGED)

    def lost(self) -> FormatError:
        """The error of a read that the mapping could not serve."""
        return FormatError(
            f"{self.path} lost bytes while it was in use: it was shortened, or its disk failed.",
            CHANGED,
        )


def _closed(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be opened: {error.strerror}.", "Check the path and its permissions."
    )
