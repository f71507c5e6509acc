"""Tiny models, and what the CUDA device needs in the place of a card."""

import pytest

from muser.devices.cuda import driver
from tests.devices.cuda.fake_driver import FakeDriver
from tests.kernels.cuda.shim import compiler


@pytest.fixture
def fake(monkeypatch):
    """The driver's functions, without a driver."""
    made = FakeDriver()
    monkeypatch.setattr(driver, "driver_module", lambda: made)
    return made


def pytest_collection_modifyitems(items):
    if compiler() is None:
        skip = pytest.mark.skip(reason="no C++ compiler for this machine's processor")
        for item in items:
            if "tests/devices/cuda" in item.path.as_posix():
                item.add_marker(skip)
