"""How bytes on their way are shown, on stderr: a bar on a terminal, a few lines elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUARTERS = 4
LEAST_TOLD = 10_000_000  # bytes: what is smaller is over before a line about it is read


def obtained(model: str | None, *, accept_terms: bool = False) -> Path:
    """The file of a model, fetched first with its progress shown when it is not here."""
    from muser.weights.catalogue import DEFAULT, Entry, locate
    from muser.weights.fetch import fetch

    found = locate(DEFAULT if model is None else model)
    if not isinstance(found, Entry):
        return found
    if found.is_here:
        return found.path
    from muser.cli.terms import settle  # the question is for a fetch alone

    settle(found, accept_terms)
    if model is None:
        print("No model is on this machine yet.", file=sys.stderr, flush=True)
    with watching("Fetching") as watch:
        return fetch(found, watch)


@contextmanager
def narrated() -> Iterator[list[str]]:
    """Say on stderr what the engine logs: that it compiles, that a cache cannot be written.

    The list holds those of them that are warnings.
    """
    import logging

    warnings: list[str] = []

    def note(entry: logging.LogRecord) -> bool:
        if entry.levelno >= logging.WARNING:
            warnings.append(entry.getMessage())
        return True

    handler = logging.StreamHandler()
    handler.addFilter(note)
    log = logging.getLogger("muser")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield warnings
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


@contextmanager
def watching(what: str) -> "Iterator[Bar | Lines]":
    """A bar on a terminal, lines elsewhere; both are a `Watch`."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:
        yield Bar(progress, progress.add_task(what, total=None))


class Bar:
    """Bytes on a terminal."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress = progress
        self._task = task

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def advance(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)


class Lines:
    """Bytes in a log: one line for each quarter."""

    def __init__(self) -> None:
        self._quarter = 0

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def advance(self, done: int, total: int) -> None:
        if total < LEAST_TOLD:
            return
        quarter = done * QUARTERS // total
        if quarter > self._quarter:
            self._quarter = quarter
            self.say(f"{done / 1e6:.0f} of {total / 1e6:.0f} MB")
