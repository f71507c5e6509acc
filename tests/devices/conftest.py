"""The libraries of this machine, compiled at most once."""

import pytest

from muser.kernels import Shelf, choose_library, load_library, supported_isas
from muser.places import libraries as library_folder


@pytest.fixture(scope="session")
def shelf():
    return Shelf(library_folder())


@pytest.fixture(scope="session")
def libraries(shelf):
    return {isa: load_library(isa, shelf) for isa in supported_isas(choose_library(shelf, "c"))}


@pytest.fixture
def library(libraries):
    """The best one."""
    return list(libraries.values())[-1]
