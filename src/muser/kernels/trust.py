"""Whose files may be executed: those that only this user and the system's can have written."""

import errno
import os
import stat
from pathlib import Path

LARGEST = 64 << 20  # bytes; libraries have far less than one MiB


class DistrustError(Exception):
    """A file or folder that others could have written; the text completes a sentence about it."""


def check_folder(folder: Path) -> None:
    """Raises `DistrustError`, and `OSError` for a folder that is not there."""
    _check(os.stat(folder))


def read_trusted(path: Path) -> bytes:
    """The bytes of a file.

    Raises `DistrustError`, and `OSError` for what is no plain file of a library's size: a link is
    none.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags | getattr(os, "O_CLOEXEC", 0)), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
            raise OSError(errno.EINVAL, "no plain file of a library's size", str(path))
        _check(about)
        return file.read(LARGEST)


def _check(about: os.stat_result) -> None:
    if not hasattr(os, "geteuid"):
        return
    if about.st_uid not in (0, os.geteuid()):
        raise DistrustError(f"belongs to another user ({about.st_uid})")
    if about.st_mode & stat.S_IWOTH:
        raise DistrustError("can be written by every user")
