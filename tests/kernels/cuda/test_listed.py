"""Runs last: no kernel of a listed unit may pass by not being run."""

import os

import pytest

from muser.kernels.cuda_registry import UNITS

from .listed import LISTED
from .shim import RAN, runs

PAIRS = [(unit, name) for unit, names in LISTED.items() for name in names]


def test_every_unit_is_listed():
    assert LISTED.keys() == UNITS.keys()
    assert all(names for names in LISTED.values())


@pytest.mark.parametrize(("unit", "architecture"), PAIRS, ids=str)
def test_every_kernel_of_the_unit_ran(request, unit, architecture):
    config = request.config
    chosen = any("::" in name or name.endswith(".py") for name in config.args)
    if chosen or config.option.keyword or getattr(config.option, "lf", False):
        pytest.skip("only a part of the tests was asked for")
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("a worker of pytest-xdist sees only its own launches")
    if not runs(architecture):
        pytest.skip(f"this card does not run {architecture}")
    assert {name for name in UNITS[unit].kernels if (architecture, name) not in RAN} == set()
