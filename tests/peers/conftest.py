"""Where the comparison lives, and the peer that it compares with."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from agree.engines import LlamaCpp
from peers import llama_cpp_python


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    """llama-cpp-python with flash attention off and one thread; compiled here if it is missing.

    A machine without a C++ compiler skips; a build that fails is a failure.
    """
    try:
        python = llama_cpp_python.python()
    except llama_cpp_python.PeerError:
        if not any(map(shutil.which, ("c++", "g++", "clang++"))):
            pytest.skip("llama-cpp-python is not installed, and there is no C++ compiler for it.")
        python = llama_cpp_python.install()
    log = tmp_path_factory.mktemp("peer") / "llama.cpp.log"
    with LlamaCpp(python, llama_cpp_python.WORKER, threads=1, log=log) as running:
        yield running
