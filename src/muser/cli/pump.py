"""Work on a second thread, so that Ctrl-C reaches the first one while native code runs."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
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

    def work() -> None:
        try:
            for item in items:
                handed.put(item)
        except BaseException as problem:
            handed.put(_End(problem))
        else:
            handed.put(_End(None))

    thread = Thread(target=work, name="muser-engine", daemon=True)
    thread.start()
    try:
        while not isinstance(item := _next(handed), _End):
            yield item
    except BaseException:
        while thread.is_alive():
            cancel()
            thread.join(PATIENCE_SECONDS)
        raise
    thread.join()
    if item.problem is not None:
        raise item.problem


def _next(handed: SimpleQueue[T]) -> T:
    """The next item. A wait without an end can miss a signal that comes just before it begins."""
    while True:
        try:
            return handed.get(timeout=PATIENCE_SECONDS)
        except Empty:
            continue
