"""Build llama.cpp for this machine's CUDA card: the rival that counts there; say where it is.

    python bench/peers/llama_cuda.py install [--source ARCHIVE] [--arch 90-real]
    python bench/peers/llama_cuda.py where [--arch 90-real]

Needs the CUDA toolkit with nvcc and cuBLAS, a C++ compiler, cmake, and about five minutes on
sixteen cores. Source and place are those of `llama_clang.py`; `--source` takes an archive or a
folder that is here already, for a machine without a network. `--arch` is cmake's name of the card's
architecture, for a build on a machine without that card.

The bare name of an architecture would add intermediate code for later cards; `-real` leaves that
out. Pieces between cards (NCCL) are off: one card is measured.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import building
from peers.building import PeerError
from peers.llama_build import OPTIONS, Recipe, command_line

COMPILERS = ("g++", "c++", "clang++")
TARGETS = ("llama", "llama-bench")
TOP = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)
RPATH = "-DCMAKE_INSTALL_RPATH=$ORIGIN"


def architecture() -> str:
    """cmake's name for that of the first card. Raises `PeerError` without one."""
    from muser.devices.cuda.driver import find_card
    from muser.errors import MuserError

    try:
        _, _, facts = find_card()
    except MuserError as problem:
        raise PeerError(f"{problem} Or name the card's architecture: --arch 90-real.") from problem
    return "".join(map(str, facts.capability)) + "-real"


def options(arch: str, toolkit: Path) -> tuple[str, ...]:
    """cmake's, compilers left out. The toolkit's libraries are found where they are now."""
    common = tuple(option for option in OPTIONS if option != RPATH)
    return (
        *common,
        f"{RPATH};{toolkit / 'lib64'}",
        "-DGGML_NATIVE=OFF",
        "-DGGML_CUDA=ON",
        f"-DCMAKE_CUDA_ARCHITECTURES={arch}",
        "-DGGML_CUDA_NCCL=OFF",
    )


def found(*names: str) -> Path:
    """The first that is on the PATH. Raises `PeerError`."""
    path = next((path for name in names if (path := shutil.which(name))), None)
    if path is None:
        raise PeerError(f"There is no {names[0]} on the PATH; building for a card needs it.")
    return Path(path)


def toolkit_of(nvcc: Path) -> Path:
    """The folder of the CUDA toolkit. The nvcc on the PATH may be a script that calls another."""
    said = TOP.search(building.call("nvcc", [nvcc, "--dryrun", "-x", "cu", "/dev/null"]))
    if said is None:
        raise PeerError(f"{nvcc} does not say where its toolkit lies.")
    return Path(said[1].strip()).resolve()


def recipe(arch: str | None = None) -> Recipe:
    """This machine's, for its card or for `arch`. Raises `PeerError`."""
    toolkit = toolkit_of(found("nvcc"))
    nvcc, plus = toolkit / "bin" / "nvcc", found(*COMPILERS)
    return Recipe(
        label="cuda",
        versions={
            "compiler": building.version_of(plus),
            "nvcc": building.version_of(nvcc, line=-1),
        },
        options=options(arch or architecture(), toolkit),
        paths=(f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCMAKE_CXX_COMPILER={plus}"),
        targets=TARGETS,
        script=Path(__file__).name,
        minutes="five minutes on sixteen cores",
    )


def where(arch: str | None = None) -> Path:
    """The finished build's folder: `libllama.so`, `include`, `llama-bench`. Raises `PeerError`."""
    return recipe(arch).where()


def _recipe(chosen: argparse.Namespace) -> Recipe:
    return recipe(chosen.arch)


if __name__ == "__main__":
    command_line(
        __doc__.splitlines()[0],
        _recipe,
        ("--arch", "cmake's name of the architecture; default this machine's card"),
    )
