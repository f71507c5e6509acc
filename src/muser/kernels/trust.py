"""Whose files may be executed: those that only this user and the system's can have written."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST = 64 << 20  # bytes; libraries have far less than one MiB


class DistrustError(Exception):
    """A file or folder that others could have written; the text completes a sentence about it."""


def check_folder(folder: Path) -> None:
    """Raises `DistrustError`, and `OSError` for a folder that is not there."""
    check(os.stat(folder))


def open_trusted(path: Path) -> BinaryIO:
    """A file to read.

    Raises `DistrustError`, and `OSError` for what is no plain file: a link is none.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.fdopen(os.open(path, flags | getattr(os, "O_CLOEXEC", 0)), "rb")
    try:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "no plain file", str(path))
        check(about)
    except BaseException:
        file.close()
        raise
    return file


def read_trusted(path: Path) -> bytes:
    """The bytes of a file of a library's size at most. Raises as `open_trusted` does."""
    with open_trusted(path) as file:
        if os.fstat(file.fileno()).st_size > LARGEST:
            raise OSError(errno.EINVAL, "larger than a library", str(path))
        return file.read(LARGEST)


def check(about: os.stat_result) -> None:
    """Raises `DistrustError` for what another user could have written."""
    if not hasattr(os, "geteuid"):
        return
    if about.st_uid not in (0, os.geteuid()):
        raise DistrustError(f"belongs to another user ({about.st_uid})")
    if about.st_mode & stat.S_IWOTH:
        raise DistrustError("can be written by every user")
