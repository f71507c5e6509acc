"""The emulated machine, the runs on it (begun at once), and what they said."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from .machine import Unavailable, prepare
from .processors import BEST, SETS

# Left out: what the system and its files do, and signals, which an emulator only passes on.
ABOUT_THE_SYSTEM = (
    "kernels/test_opening.py", "kernels/test_shelf.py", "kernels/test_listing.py",
    "devices/cpu/test_guard.py",
)  # fmt: skip
TESTS = (
    "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider",
    "-o", "addopts=", "-o", "faulthandler_timeout=600",
    *(f"--ignore=tests/{name}" for name in ABOUT_THE_SYSTEM),
)  # fmt: skip
MODELS = "glimmer-census or llama-q4_1"
CHUNKED = f"every_chunking and (neon-2 or i8mm-2) and ({MODELS})"
RUNS = {
    # With three threads, or where their number plays no part.
    "kernels": (BEST, *TESTS, "tests/kernels", "-k", "not 1t and not 2t"),
    "devices": (BEST, *TESTS, "tests/devices", "-k", f"not same_bits or ({CHUNKED})"),
    **{f"checks on {cpu}": (cpu, "tests/arm/checks.py") for cpu in SETS},
}
SAID = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def machine():
    """Whoever asked for these tests by name has not had them where there is no machine."""
    try:
        return prepare()
    except Unavailable as reason:
        pytest.fail(f"no ARM machine can be emulated here: {reason}", pytrace=False)


@pytest.fixture(scope="session")
def runs(machine):
    """Name of a run to the future of its finished process. The longest are begun first."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {name: pool.submit(machine.run, *command) for name, command in RUNS.items()}
        yield futures
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def said(request):
    """Lines for the end of the outer run."""
    return request.config.stash.setdefault(SAID, [])


def pytest_terminal_summary(terminalreporter, config):
    lines = config.stash.get(SAID, [])
    if lines:
        terminalreporter.section("on the emulated ARM machine")
        for line in lines:
            terminalreporter.line(line)


def totals(output):
    """The closing lines of an inner run: comparisons by set, and how many tests ran."""
    return [x for x in output.splitlines() if re.match(r"cpu-\w+: |\d+ (passed|failed)", x)]
