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


class Endless(Iterator[int]):
    """One item, then nothing until `stop`; `left` is set when the thread has let go of it."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.left = threading.Event()
        self.given = 0

    def __next__(self) -> int:
        self.given += 1
        if self.given == 1:
            return 0
        self.stop.wait(60)
        self.left.set()
        raise StopIteration


def test_closing_cancels_and_waits() -> None:
    endless = Endless()
    with closing(pumped(endless, endless.stop.set)) as stream:
        assert next(stream) == 0
    assert endless.left.is_set()


def test_a_second_interrupt_does_not_leave_the_thread_behind() -> None:
    endless = Endless()
    calls: list[int] = []

    def impatient() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise KeyboardInterrupt
        endless.stop.set()

    stream = pumped(endless, impatient)
    assert next(stream) == 0
    stream.close()
    assert endless.left.is_set()


def test_an_interrupt_reaches_a_thread_that_waits() -> None:
    endless = Endless()
    stream = pumped(endless, endless.stop.set)
    assert next(stream) == 0
    press = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))

    def wait_for_the_press() -> int:
        press.start()  # in here, so that an early one is caught as well
        return next(stream)

    with pytest.raises(KeyboardInterrupt):
        wait_for_the_press()
    assert endless.left.is_set()
    press.join()
