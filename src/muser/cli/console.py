"""The process's streams and signals, made ready so that nothing odd about them is a defect."""

import atexit
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from muser.errors import MuserError

TERMINATED = 143
BURST_SECONDS = 1.0

# Control characters as their pictures (U+2400 onward): a model file's texts must not drive the
# terminal. The C1 controls have no pictures.
_TERMINAL = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    0x7F: 0x2421,
}
_LINE = _TERMINAL | dict.fromkeys(map(ord, "\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def visible(text: str) -> str:
    """`text` with pictures in place of all control characters but line feed and tabulator."""
    return text.translate(_TERMINAL)


def one_line(text: str) -> str:
    """The same, and on one line."""
    return text.translate(_LINE)


def in_two_lines(problem: MuserError) -> str:
    """An error as the command line says it."""
    return f"error: {one_line(problem.sentence)}\n{one_line(problem.remedy)}"


def last_words(problem: MuserError) -> bytes:
    """The same for native code to write; a text may stand unfinished on the same terminal."""
    begun = "\n" if sys.stdout.isatty() and sys.stderr.isatty() else ""
    return f"{begun}{in_two_lines(problem)}\n".encode("utf-8", "backslashreplace")


def speaks_utf8() -> bool:
    """Whether standard output can take every character as it is."""
    return str(getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"


def prepare() -> None:
    """Open the streams that are closed, make all characters printable, take over the signals."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _Interrupt())


def leave(status: int) -> NoReturn:
    """End the process as `sys.exit` does, exit functions and streams included, but without taking
    the interpreter apart object by object: the system frees the memory at once.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # said before, or nobody is there to be told
            stream.flush()
    os._exit(status)


class _Interrupt:
    """Ctrl-C as one `KeyboardInterrupt` a second: a burst must not cut its own cleaning short."""

    def __init__(self) -> None:
        self._last = -BURST_SECONDS

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last >= BURST_SECONDS:
            self._last = now
            raise KeyboardInterrupt


def _open_closed_streams() -> None:
    """In order of their numbers: the system gives each the lowest free one, which is its own.

    A number left free would go to the next file opened, and a child process would write into it.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            mode = "r" if flags == os.O_RDONLY else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)
