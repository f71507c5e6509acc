"""The harness of a real card, without one: texts compile, launches see only the card's memory."""

import ctypes
import mmap
import struct
from types import SimpleNamespace

import numpy as np
import pytest

from muser.devices.cuda.card import Facts, Shape
from muser.errors import DeviceError, DeviceLost
from muser.kernels import nvrtc

from . import conftest, live
from .shim import HANDED, ShimFailure

TEXTS = {
    "sm_80": ("texts/units.cuh",),
    "sm_90": ("texts/wrong.cuh",),
    "sm_90a": ("tiles.cuh", "tile_rows.cuh", "gemm90.cuh", "texts/pieces.cuh", "texts/groups.cuh"),
}


@pytest.fixture(autouse=True)
def compiler():
    """NVRTC."""
    try:
        return nvrtc.Nvrtc()
    except DeviceError as problem:
        conftest.absent(problem)


@pytest.mark.parametrize("architecture", TEXTS)
def test_texts_of_the_tests_compile(compiler, architecture):
    source = live.source_of(TEXTS[architecture])
    assert compiler.compiled(source, "unit.cu", architecture).image


class HostCard:
    """Memory of the host's, and one kernel: it doubles the floats that it is pointed to."""

    facts = Facts("none", (9, 0), 1, 1 << 20, 1 << 16, "0", 18.0)

    def __init__(self):
        self.lost, self.shapes = False, []

    def allocate(self, size):
        self.memory = np.zeros(size, np.uint8)
        return self.memory.ctypes.data

    def library(self, image):
        assert image
        return SimpleNamespace(kernel=lambda symbol, shared: symbol)

    def upload(self, to, source):
        ctypes.memmove(to, source.ctypes.data, source.nbytes)

    def download(self, to, source):
        ctypes.memmove(to.ctypes.data, source, to.nbytes)

    def launch(self, kernel, shape, args):
        where, other, count = struct.unpack("QQQ", bytes(args))
        first = where - self.memory.ctypes.data
        assert (kernel, other) == ("double", 0)
        assert 0 <= first < self.memory.nbytes
        self.memory[first:].view(np.float32)[:count] *= 2
        self.shapes.append(shape)

    def wait(self):
        if self.lost:
            raise DeviceLost("The card is lost (700).", "Start again.")


@pytest.fixture
def card(monkeypatch):
    """In the place of the card, with a small arena."""
    arena = live.Arena(HostCard(), 1 << 16)
    for name, value in (("arena", lambda: arena), ("LOST", []), ("RAN", set())):
        monkeypatch.setattr(live, name, value)
    yield arena.card
    for start in {*HANDED.sizes} & {*range(*bounds(arena.host))}:
        HANDED.drop(start)


def bounds(array):
    return array.ctypes.data, array.ctypes.data + array.nbytes


def launch(x, count):
    made = live.Live((), "sm_90")
    made.launch("double", (3, 2), (64,), struct.pack("QQQ", x.ctypes.data, 0, count), shared=16)


def test_a_launch_sees_the_cards_memory_and_what_it_wrote_comes_back(card):
    live.device(np.ones(5))
    x = live.device(np.arange(100, dtype=np.float32))
    launch(x[40:], 20)
    assert np.array_equal(x, [*range(40), *range(80, 120, 2), *range(60, 100)])
    assert card.shapes == [Shape((3, 2, 1), 64, 16)]
    assert {("sm_90", "double")} == live.RAN


def test_memory_of_the_host_is_refused_before_a_launch(card):
    live.device(np.ones(5))
    theirs = np.frombuffer(mmap.mmap(-1, 4096), np.float32)
    with pytest.raises(ShimFailure, match="double: byte 0 of its argument points to no memory"):
        launch(theirs, 20)
    assert not card.shapes


def test_a_lost_card_ends_the_run_with_its_kernel(card, monkeypatch):
    x = live.device(np.ones(9, np.float32))
    launch(x, 9)
    assert not ends(monkeypatch)
    card.lost = True
    with pytest.raises(ShimFailure, match=r"double: The card is lost \(700\)"):
        launch(x, 9)
    assert ends(monkeypatch) == "double: The card is lost (700). Start again."


def ends(monkeypatch):
    """Why a run would end after a test."""
    session = SimpleNamespace(shouldfail=False)
    with monkeypatch.context() as patch:
        patch.setattr(conftest, "LOST", live.LOST)
        conftest.pytest_runtest_teardown(SimpleNamespace(session=session))
    return session.shouldfail


def test_a_card_of_another_kind_is_skipped(card):
    with pytest.raises(pytest.skip.Exception, match="does not run sm_80"):
        live.Live((), "sm_80")
