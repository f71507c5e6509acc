"""`python -m muser` and `muser`: an interrupt is quiet from the first import on."""

import gc
import os
import signal
from types import FrameType

INTERRUPTED = 130


def start() -> None:
    """Run the command line; until it has taken over the signals, Ctrl-C ends the process."""
    signal.signal(signal.SIGINT, _leave)
    # A start makes many objects and drops few: looking for cycles among them is in vain.
    gc.set_threshold(100_000)
    # NumPy's OpenBLAS would start a thread a processor when it is imported; nothing here uses it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from muser.cli import main

    main()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    start()
