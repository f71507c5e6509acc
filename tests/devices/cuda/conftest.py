"""Tiny models, and what the CUDA device needs in the place of a card."""

import pytest

from muser.devices import Limits
from muser.devices.cuda import CudaRunner, driver
from muser.devices.cuda.driver import open_card
from tests.devices.cuda.fake_driver import FakeDriver
from tests.devices.cuda.shim_card import shim_library
from tests.devices.cuda.small import LENGTH, small_model
from tests.kernels.cuda.shim import compiler


@pytest.fixture
def fake(monkeypatch):
    """The driver's functions, without a driver."""
    made = FakeDriver()
    monkeypatch.setattr(driver, "driver_module", lambda: made)
    return made


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """See `small_model`."""
    return small_model(tmp_path_factory.mktemp("small") / "m.gguf")


@pytest.fixture
def runner(fake, model):
    graph, weights, _, _ = model
    made = CudaRunner(open_card(), shim_library("sm_90a"), graph, weights, Limits(LENGTH, 1, 128))
    yield made
    made.close()


def pytest_collection_modifyitems(items):
    if compiler() is None:
        skip = pytest.mark.skip(reason="no C++ compiler for this machine's processor")
        for item in items:
            if "tests/devices/cuda" in item.path.as_posix():
                item.add_marker(skip)
