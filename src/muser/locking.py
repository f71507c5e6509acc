"""One process at a time: a lock on a file, which the operating system lets go of with its process.

The file holds the holder's process id, for whoever waits; it stays when the lock is gone.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

POLL_SECONDS = 0.05
_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@contextmanager
def held(path: Path, told: Callable[[str], None], patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of `path`; its folder exists.

    After `patience` seconds of waiting, `told` hears once who holds it: "process 4711", or
    "another process". Raises `OSError` where the system has no such locks.
    """
    with path.open("a+b") as handle:
        start, silent = time.monotonic(), True
        while not try_lock(handle):
            if silent and time.monotonic() - start >= patience:
                told(_holder(handle))
                silent = False
            time.sleep(POLL_SECONDS)
        _sign(handle)
        yield


def try_lock(handle: IO[bytes]) -> bool:
    """Whether the lock of an open file was free, and is now this process's until it is closed."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in _BUSY:
            return False
        raise
    return True


def seen(path: Path) -> tuple[int, ...] | None:
    """Changes with the file of that name and its bytes; None where there is none.

    Who waited for a lock learns by it whether another process has made the file meanwhile.
    """
    try:
        about = path.lstat()
    except OSError:
        return None
    return (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


def _sign(handle: IO[bytes]) -> None:
    """A full disk does not keep the lock from working."""
    try:
        handle.truncate(0)
        handle.write(b"%d\n" % os.getpid())
        handle.flush()
    except OSError:
        return


def _holder(handle: IO[bytes]) -> str:
    try:
        handle.seek(0)
        word = handle.read(32).strip()
    except OSError:
        word = b""
    return f"process {int(word)}" if word.isdigit() else "another process"
