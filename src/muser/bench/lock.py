"""One measurement at a time on a machine: a lock file that the system lets go of."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muser.errors import BusyError
from muser.locking import try_lock

NAME = "bench.lock"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock in `folder`. Raises `BusyError` at once where another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / NAME).open("ab") as handle:
        if not try_lock(handle):
            raise BusyError(
                "Another measurement is running on this machine.",
                "Wait for it: two at once would measure each other.",
            )
        yield
