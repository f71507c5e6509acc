"""One measurement at a time on a machine: a lock file that the system lets go of."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from muser.errors import BusyError

NAME = "bench.lock"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock in `folder`. Raises `BusyError` at once where another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / NAME).open("ab") as handle:
        if not _taken(handle):
            raise BusyError(
                "Another measurement is running on this machine.",
                "Wait for it: two at once would measure each other.",
            )
        yield


def _taken(handle: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True
