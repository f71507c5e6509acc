"""Build llama.cpp with clang, AMX included: the rival that counts on a CPU; say where it is.

    python bench/peers/llama_clang.py install [--source ARCHIVE]
    python bench/peers/llama_clang.py where

Needs clang (Debian: `apt install clang-19`), cmake and about ten minutes on two idle cores; the
source is b11434 from the package index. Libraries, headers, `llama-quantize` and `llama-bench` are
kept under Muser's cache folder (or `MUSER_PEERS`), in a folder named by all that decides their
bits. Installing again finds them there; an interrupted build goes on where it stopped.

OpenMP is off: Debian's clang comes without its library, and ggml's own thread pool takes its place.
"""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import building
from peers.building import CLANG_SWITCHES, PeerError
from peers.llama_build import OPTIONS, Recipe, command_line

COMPILERS = ("clang-19", "clang-20", "clang-21", "clang-18", "clang")
TARGETS = ("llama", "llama-quantize", "llama-bench")


def options() -> tuple[str, ...]:
    """cmake's, compilers left out; off Linux on x86 ggml's own for this machine."""
    flags = building.host_flags()
    sets = ["-DGGML_NATIVE=ON"] if flags is None else building.ggml_switches(flags, CLANG_SWITCHES)
    return (*OPTIONS, *sets)


def compiler() -> Path:
    """clang, 19 first. Raises `PeerError` where there is none."""
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        raise PeerError("There is no clang: `apt install clang-19`, or put another on the PATH.")
    return Path(found)


def recipe() -> Recipe:
    """This machine's. Raises `PeerError` without clang."""
    clang = compiler()
    plus = clang.with_name(clang.name.replace("clang", "clang++"))
    return Recipe(
        label="clang",
        versions={"compiler": building.version_of(clang)},
        options=options(),
        paths=(f"-DCMAKE_C_COMPILER={clang}", f"-DCMAKE_CXX_COMPILER={plus}"),
        targets=TARGETS,
        script=Path(__file__).name,
        minutes="ten minutes",
    )


def where() -> Path:
    """The finished build's folder: `libllama.so`, `include`, the tools. Raises `PeerError`."""
    return recipe().where()


if __name__ == "__main__":
    command_line(__doc__.splitlines()[0], lambda _: recipe())
