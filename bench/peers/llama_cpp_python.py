"""Install llama-cpp-python, the live reference, and say where it is.

    python bench/peers/llama_cpp_python.py install [--wheel FILE] [--here]
    python bench/peers/llama_cpp_python.py where

The package has no wheels, so it is compiled once (about six minutes on two cores; needs a C++
compiler, pip brings cmake) and kept under Muser's cache folder, in a subfolder named by all that
decides its bits: version, instruction sets, platform. Everything that reads it runs in a virtual
environment next to the wheel, unless `--here` installs it beside Muser.

Instruction sets are named one by one from the CPU's flags instead of GGML_NATIVE=ON, which would
pick AMX where there is AMX: gcc 12 then builds a library that crashes on quantised models.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import building
from peers.building import SWITCHES, PeerError

VERSION = "0.3.36"
REQUIREMENT = f"llama-cpp-python=={VERSION}"
SOURCE_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
WORKER = Path(__file__).with_name("llama_worker.py")


def cmake_arguments(cpu_flags: frozenset[str]) -> str:
    """CMAKE_ARGS of an x86 build for a CPU with these flags."""
    return " ".join([*building.ggml_switches(cpu_flags, SWITCHES), "-DLLAVA_BUILD=OFF"])


def host_arguments() -> str:
    """CMAKE_ARGS for this machine; off Linux on x86, ggml's own defaults."""
    flags = building.host_flags()
    return "-DLLAVA_BUILD=OFF" if flags is None else cmake_arguments(flags)


def folder() -> Path:
    """Where this machine's build lives, whether or not it is there yet."""
    name = building.key(
        REQUIREMENT, host_arguments(), platform.platform(), platform.python_version()
    )
    return building.shelf() / f"llama-cpp-python-{VERSION}-{name}"


def python() -> Path:
    """The Python that can import the peer: the cached environment's, else this one.

    Raises `PeerError` when neither can.
    """
    candidates = [_python_of(folder() / "venv"), Path(sys.executable)]
    for candidate in candidates:
        if candidate.exists() and _has_peer(candidate):
            return candidate
    raise PeerError(
        f"{REQUIREMENT} is not installed: run `python bench/peers/llama_cpp_python.py install`."
    )


def library() -> Path:
    """The folder of the peer's libllama; its headers lie two folders above. Raises `PeerError`."""
    question = (
        "from importlib.util import find_spec\n"
        "print(find_spec('llama_cpp').submodule_search_locations[0])"
    )
    found = building.call("python", [python(), "-c", question])
    return Path(found.strip()) / "lib"


def install(wheel: Path | None = None, *, here: bool = False) -> Path:
    """Build the wheel unless it is there, install it, and return the Python that has it.

    Raises `PeerError` when the build or the installation fails.
    """
    kept = folder()
    kept.mkdir(parents=True, exist_ok=True)
    if wheel is not None:
        shutil.copy(wheel, kept / wheel.name)
    built = _kept_wheel(kept) or _build(kept)
    interpreter = Path(sys.executable)
    if not here:
        venv.create(kept / "venv", with_pip=True)
        interpreter = _python_of(kept / "venv")
    building.pip(REQUIREMENT, interpreter, "install", "--quiet", str(built))
    return interpreter


def _build(kept: Path) -> Path:
    """Compile, with the arguments beside the wheel."""
    arguments = host_arguments()
    (kept / "cmake_args.txt").write_text(arguments + "\n")
    building.told(f"building {REQUIREMENT} with {arguments}")
    pinned = kept / "requirements.txt"
    pinned.write_text(f"{REQUIREMENT} --hash=sha256:{SOURCE_SHA256}\n")
    flags = ["--no-deps", "--no-binary", "llama-cpp-python", "--no-cache-dir", "--require-hashes"]
    paths = ["-w", str(kept), "-r", str(pinned)]
    python = Path(sys.executable)
    building.pip(REQUIREMENT, python, "wheel", *flags, *paths, CMAKE_ARGS=arguments)
    built = _kept_wheel(kept)
    assert built is not None
    return built


def _kept_wheel(kept: Path) -> Path | None:
    return next(kept.glob(f"llama_cpp_python-{VERSION}-*.whl"), None)


def _python_of(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _has_peer(interpreter: Path) -> bool:
    question = (
        "from importlib.metadata import version, PackageNotFoundError as Missing\n"
        f"try: raise SystemExit(version('llama-cpp-python') != {VERSION!r})\n"
        "except Missing: raise SystemExit(1)"
    )
    return subprocess.run([str(interpreter), "-c", question], check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install", help="build or reuse the wheel and install it")
    installing.add_argument("--wheel", type=Path, help="use this wheel instead of building one")
    installing.add_argument("--here", action="store_true", help="install beside Muser")
    commands.add_parser("where", help="print the Python that has it")
    chosen = parser.parse_args()
    try:
        install_here = chosen.command == "install"
        print(install(chosen.wheel, here=chosen.here) if install_here else python())
    except PeerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
