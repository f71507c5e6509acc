"""The second thread: order kept, errors passed on, and always ended."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from muser.cli.pump import pumped


def never() -> None:
    raise AssertionError("nothing was to be cancelled")


def test_items_arrive_in_order_from_another_thread() -> None:
    makers: set[int] = set()

    def items() -> Iterator[int]:
        for number in range(100):
            makers.add(threading.get_ident())
            yield number

    assert list(pumped(items(), never)) == list(range(100))
    assert makers
    assert threading.get_ident() not in makers


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("second")

    stream = pumped(items(), never)
    assert next(stream) == 1
    with pytest.raises(ValueError, match="second"):
        next(stream)


def endless(stop: threading.Event) -> Iterator[int]:
    yield 0
    stop.wait(60)


def test_closing_cancels_and_waits() -> None:
    stop = threading.Event()
    with closing(pumped(endless(stop), stop.set)) as stream:
        assert next(stream) == 0
    assert stop.is_set()
    assert "muser-engine" not in {thread.name for thread in threading.enumerate()}


def test_an_interrupt_reaches_a_thread_that_waits() -> None:
    stop = threading.Event()
    stream = pumped(endless(stop), stop.set)
    assert next(stream) == 0
    press = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    press.start()
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert stop.is_set()
    press.join()
    assert "muser-engine" not in {thread.name for thread in threading.enumerate()}
