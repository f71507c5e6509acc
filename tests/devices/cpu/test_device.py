"""The CPU device: how many threads it takes."""

import errno
from types import SimpleNamespace

import pytest

from muser.devices import CpuDevice, default_threads
from muser.devices.cpu.tape import Player
from muser.errors import DeviceError, LimitError, UsageError
from muser.kernels import Shelf


def test_threads():
    assert CpuDevice().threads == default_threads() >= 1
    with pytest.raises(UsageError, match="0 threads"):
        CpuDevice(threads=0)


def test_too_many_threads_are_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("muser.devices.cpu.device.choose_library", None)
    with pytest.raises(LimitError, match="at most 256"):
        CpuDevice(threads=257, shelf=Shelf(tmp_path))


def test_threads_that_the_system_refuses(libraries, monkeypatch):
    refusal = SimpleNamespace(open=lambda *args: errno.EAGAIN)
    monkeypatch.setattr("muser.devices.cpu.tape._Calls", lambda handle: refusal)
    with pytest.raises(DeviceError, match=r"refuses a pool of 200 threads \(.*unavail"):
        Player(libraries["c"], 200, 64)
