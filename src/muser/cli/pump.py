"""Work on a second thread, so that Ctrl-C reaches the first one while native code runs."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class _End:
    problem: BaseException | None


def pumped(items: Iterator[T], cancel: Callable[[], None]) -> Generator[T]:
    """The same items, made on another thread; what that thread raises is raised here.

    When the consumer stops early, by an exception or by closing this generator, `cancel` is called
    until the thread has ended: one call may fall between two forward passes and stop neither.
    """
    handed: SimpleQueue[T | _End] = SimpleQueue()
    ended = Event()

    def work() -> None:
        problem: BaseException | None = None
        try:
            for item in items:
                handed.put(item)
        except BaseException as raised:
            problem = raised
        ended.set()
        handed.put(_End(problem))

    try:
        # Inside: an interrupt may come while `start` waits for the thread, which then runs.
        Thread(target=work, name="muser-engine", daemon=True).start()
        while not isinstance(item := _next(handed), _End):
            yield item
    except BaseException:
        _stop(ended, cancel)
        raise
    if item.problem is not None:
        raise item.problem


def _stop(ended: Event, cancel: Callable[[], None]) -> None:
    """Impatience must not leave the thread behind: what it works on is about to be closed."""
    while True:
        try:
            while not ended.wait(PATIENCE_SECONDS):
                cancel()
            return
        except KeyboardInterrupt:
            continue


def _next(handed: SimpleQueue[T]) -> T:
    """The next item. A wait without an end can miss a signal that comes just before it begins."""
    while True:
        try:
            return handed.get(timeout=PATIENCE_SECONDS)
        except Empty:
            continue
