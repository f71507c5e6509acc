"""Last words for a process whose mapped weights lose their bytes (`kernels/cpu/guard.h`)."""

import ctypes
import os

from muser.devices.device import LastWords
from muser.errors import DeviceError
from muser.formats import GgufFile
from muser.kernels import Library, address


def guard(library: Library, file: GgufFile, last_words: LastWords) -> None:
    """A read in `file` that the system cannot serve ends this process, with a word and a status.

    Raises `DeviceError` if the system, or the library's table, takes no more of them.
    """
    problem, whole = file.lost(), file.whole
    words = last_words(problem)
    install = library.handle.muser_guard
    install.restype = ctypes.c_int32
    error = install(
        ctypes.c_void_p(address(whole)),
        ctypes.c_int64(whole.nbytes),
        ctypes.c_char_p(words),
        ctypes.c_int64(len(words)),
        ctypes.c_int32(problem.exit_status),
    )
    if error:
        raise DeviceError(
            f"{file.path} cannot be guarded against losing bytes: {os.strerror(error)}.",
            "Load fewer models in one process.",
        )
