"""One library a set of texts and architecture, and the orders in which fibers go on."""

import functools
import platform
from pathlib import Path
from typing import NoReturn

import pytest

from muser.errors import DeviceError

from .images import Images
from .shim import LOST, ON_CARD, Shim, compiler

HERE = Path(__file__).parent
COMPILED_BY_NVRTC = ("test_compile.py", "test_pipelines.py", "test_library.py", "test_live.py")


def absent(problem: DeviceError) -> NoReturn:
    """No NVRTC is a failure where the extra `dev` brings it, on x86-64, and a skip elsewhere."""
    if platform.machine() == "x86_64":
        pytest.fail(str(problem), pytrace=False)
    pytest.skip(str(problem))


@pytest.fixture(scope="session")
def shims():
    """`shims("sm_90a", "rows.cuh", …)`: the library of these texts, compiled once a session."""
    return functools.cache(lambda architecture, *texts: Shim(texts, architecture))


@pytest.fixture(scope="session")
def images():
    """Every unit for every architecture, compiled once a session."""
    try:
        made = Images()
    except DeviceError as problem:
        absent(problem)
    yield made
    made.close()


@pytest.fixture(params=(0, 1, 2), ids=("in order", "shuffled", "shuffled again"))
def seed(request):
    return request.param


def pytest_runtest_teardown(item):
    """The run ends with the kernel that lost the card: after it every test would fail."""
    if LOST:
        item.session.shouldfail = LOST[0]


def pytest_collection_modifyitems(items):
    if compiler() is None and not ON_CARD:
        skip = pytest.mark.skip(reason="no C++ compiler for this machine's processor")
        for item in items:
            if HERE in item.path.parents and item.path.name not in COMPILED_BY_NVRTC:
                item.add_marker(skip)
    items.sort(key=lambda item: item.path.name == "test_listed.py")
