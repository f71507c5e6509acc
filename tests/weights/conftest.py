"""A library that reads panels, and weights small enough for tests that are kept all the same."""

import numpy as np
import pytest

from muser.formats import BlockType
from muser.formats.mapped import MappedFile
from muser.kernels import Shelf, choose_library, load_library, supported_isas
from muser.places import libraries
from muser.weights import packing
from muser.weights.packing import pack
from tests.kernels.bench import random_blocks
from tests.weights.sources import source_of


@pytest.fixture(scope="session")
def library():
    """The best library of this machine that reads panels."""
    shelf = Shelf(libraries())
    for isa in reversed(supported_isas(choose_library(shelf, "c"))):
        found = load_library(isa, shelf)
        if found.constants.packed:
            return found
    pytest.skip("no instruction set of this machine reads panels")


class Notes:
    """A memory, and what it was asked to keep."""

    def __init__(self):
        self.words = {}

    def note(self, name):
        return self.words.get(name)

    def remember(self, name, word):
        self.words[name] = word


@pytest.fixture
def kept(library, tmp_path, monkeypatch):
    """A source with an origin, small enough for tests and large enough to be kept."""
    monkeypatch.setattr(packing, "KEPT_FROM", 1)
    tensors = source_of(BlockType.Q4_1, 96, 37)
    tensors.put(
        "v", BlockType.F16, random_blocks(np.random.default_rng(5), BlockType.F16, 5, 200), 200
    )
    (tmp_path / "model.gguf").write_bytes(b"model")
    tensors.origin = MappedFile(tmp_path / "model.gguf")
    tensors.memory = Notes()
    folder = tmp_path / "packed"

    def take():
        return pack(library, tensors, ["w", "v", "w"], folder, 2)

    return tensors, folder, take
