"""Kernels by name, asked for by several threads at once."""

from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Thread, Timer

from muser.devices.cuda.pipelines import Pipelines
from muser.kernels import CudaLibrary
from muser.kernels.cuda_registry import UNITS, units_of

THREADS = 8


class SlowCard:
    """A unit's loading lasts until a second thread has begun one too, or for a while."""

    def __init__(self):
        self.loaded, self.both = [], Barrier(2)

    def library(self, image):
        self.loaded.append(image.decode())
        end = Timer(0.2, self.both.abort)
        end.start()
        with suppress(BrokenBarrierError):  # nobody else came, which is right
            self.both.wait()
        end.cancel()
        return self

    def kernel(self, symbol, shared):
        return symbol, shared

    def size(self, symbol):
        return len(symbol)


def test_no_unit_is_loaded_twice():
    """The threads that place weights ask for their kernels at once."""
    card, names = SlowCard(), units_of("sm_80")
    library = CudaLibrary("sm_80", "none", "0" * 64, {name: name.encode() for name in names})
    pipelines, found, together = Pipelines(card, library), [], Barrier(THREADS)

    def ask(number):
        together.wait()
        for unit in ("project", "rows"):
            kernel = UNITS[unit].kernels[number]
            found.append(pipelines.kernel(kernel, 0))
            assert pipelines.size(kernel, "some") == 4

    threads = [Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(card.loaded) == ["project", "rows"]
    assert len(found) == 2 * THREADS
