"""A library becomes code: from its file, or from memory where its folder forbids execution."""

import ctypes
import logging
import os
import tempfile
from pathlib import Path

from muser.errors import DeviceError
from muser.kernels.shelf import MODE, Shelved

MFD_CLOEXEC, MFD_EXEC = 0x1, 0x10  # linux/memfd.h; Python 3.11 does not name the second

log = logging.getLogger("muser.kernels")


def open_library(shelved: Shelved) -> ctypes.CDLL:
    """Loads it; says so where it is not run from its own file.

    Raises `DeviceError` with the system's reason if it cannot be loaded from anywhere.
    """
    refusal = OSError("no folder took it")
    if shelved.path is not None:
        try:
            return ctypes.CDLL(str(shelved.path))
        except OSError as error:
            refusal = error
    for load, place in ((_from_memory, "memory"), (_from_temporary, tempfile.gettempdir())):
        try:
            handle = load(shelved.data)
        except (OSError, AttributeError):  # no memfd_create outside Linux
            continue
        if shelved.path is not None:
            log.warning(
                "%s cannot be executed (%s); its libraries run from %s.",
                shelved.path.parent,
                _reason(refusal, shelved.path),
                place,
            )
        return handle
    raise DeviceError(
        f"The kernel library {shelved.path or shelved.sha256} cannot be loaded: {refusal}.",
        "Set MUSER_CC to a compiler for this machine, or MUSER_HOME to another folder.",
    )


def _reason(refusal: OSError, path: Path) -> str:
    return str(refusal).removeprefix(f"{path}: ")


def _from_memory(data: bytes) -> ctypes.CDLL:
    """The descriptor stays open: the loader knows libraries by name, so none may come twice."""
    handle = _memory_file()
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
    try:
        return ctypes.CDLL(f"/proc/self/fd/{handle}")
    except OSError:
        os.close(handle)
        raise


def _memory_file() -> int:
    try:
        return os.memfd_create("muser", MFD_CLOEXEC | MFD_EXEC)
    except OSError:  # Linux before 6.3 does not know the second flag
        return os.memfd_create("muser", MFD_CLOEXEC)


def _from_temporary(data: bytes) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="muser-") as folder:
        path = Path(folder) / "library.so"
        path.write_bytes(data)
        path.chmod(MODE)
        return ctypes.CDLL(str(path))
