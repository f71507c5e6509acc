"""Last words for a process whose mapped files lose their bytes (`kernels/cpu/guard.h`)."""

import ctypes
import mmap
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muser.devices.device import LastWords
from muser.errors import DeviceError, FormatError
from muser.formats import GgufFile
from muser.kernels import Library, address


@dataclass(frozen=True, slots=True)
class Guard:
    """A read that the system cannot serve, in what is guarded, ends this process with a word and a
    status, for as long as it is mapped. Both methods raise `DeviceError` if the system, or the
    library's table, takes no more.
    """

    library: Library
    last_words: LastWords

    def model(self, file: GgufFile) -> None:
        """A model file's bytes."""
        self._install(file.path, file.whole, file.lost())

    def packed(self, path: Path, data: NDArray[np.uint8]) -> None:
        """What was packed of a model, as it is mapped from a file of Muser's own."""
        problem = FormatError(
            f"{path} lost bytes while it was in use: it was shortened, or its disk failed.",
            "It is made again at the next start; leave it alone while a model runs.",
        )
        self._install(path, data, problem)

    def _install(self, path: Path, data: NDArray[np.uint8], problem: FormatError) -> None:
        words = self.last_words(problem)
        install = self.library.handle.muser_guard
        install.restype = ctypes.c_int32
        entry = install(
            ctypes.c_void_p(address(data)),
            ctypes.c_int64(data.nbytes),
            ctypes.c_char_p(words),
            ctypes.c_int64(len(words)),
            ctypes.c_int32(problem.exit_status),
        )
        if entry < 0:
            raise DeviceError(
                f"{path} cannot be guarded against losing bytes: {os.strerror(-entry)}.",
                "Load fewer models in one process.",
            )
        remove = self.library.handle.muser_unguard
        remove.restype = None
        finalizer = weakref.finalize(_mapping(data), remove, ctypes.c_int32(entry))
        finalizer.atexit = False


def _mapping(data: NDArray[np.uint8]) -> mmap.mmap:
    """What keeps the bytes of an array over a mapped file alive."""
    view = data.base
    assert isinstance(view, memoryview)
    assert isinstance(view.obj, mmap.mmap)
    return view.obj
