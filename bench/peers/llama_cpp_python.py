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
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from muser import places

VERSION = "0.3.36"
REQUIREMENT = f"llama-cpp-python=={VERSION}"
SOURCE_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
WORKER = Path(__file__).with_name("llama_worker.py")
# ggml's switch and the /proc/cpuinfo flags that must all be there.
SWITCHES = {
    "GGML_AVX": ("avx",),
    "GGML_AVX2": ("avx2",),
    "GGML_FMA": ("fma",),
    "GGML_F16C": ("f16c",),
    "GGML_BMI2": ("bmi2",),
    "GGML_AVX512": ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"),
    "GGML_AVX512_VBMI": ("avx512vbmi",),
    "GGML_AVX512_VNNI": ("avx512_vnni",),
    "GGML_AVX512_BF16": ("avx512_bf16",),
}


class PeerError(Exception):
    """The peer is missing or cannot be built; the message says what to do."""


def cmake_arguments(cpu_flags: frozenset[str]) -> str:
    """The switches of an x86 build for a CPU with these flags.

    AVX-512 extensions count only with their base, since ggml compiles them in pairs.
    """
    on = {name for name, needed in SWITCHES.items() if cpu_flags.issuperset(needed)}
    if "GGML_AVX512" not in on:
        on = {name for name in on if not name.startswith("GGML_AVX512")}
    switches = [f"-D{name}={'ON' if name in on else 'OFF'}" for name in SWITCHES]
    return " ".join(["-DGGML_NATIVE=OFF", *switches, "-DLLAVA_BUILD=OFF"])


def host_arguments() -> str:
    """CMAKE_ARGS for this machine; off Linux on x86, ggml's own defaults."""
    information = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not information.exists():
        return "-DLLAVA_BUILD=OFF"
    line = next(line for line in information.read_text().splitlines() if line.startswith("flags"))
    return cmake_arguments(frozenset(line.split(":")[1].split()))


def folder() -> Path:
    """Where this machine's build lives, whether or not it is there yet."""
    said = "\n".join(
        [REQUIREMENT, host_arguments(), platform.platform(), platform.python_version()]
    )
    key = hashlib.sha256(said.encode()).hexdigest()[:16]
    return places.home() / "peers" / f"llama-cpp-python-{VERSION}-{key}"


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
    _pip(interpreter, "install", "--quiet", str(built))
    return interpreter


def _build(kept: Path) -> Path:
    """Compile, with the arguments beside the wheel."""
    arguments = host_arguments()
    (kept / "cmake_args.txt").write_text(arguments + "\n")
    print(f"building {REQUIREMENT} with {arguments}", file=sys.stderr, flush=True)
    pinned = kept / "requirements.txt"
    pinned.write_text(f"{REQUIREMENT} --hash=sha256:{SOURCE_SHA256}\n")
    flags = ["--no-deps", "--no-binary", "llama-cpp-python", "--no-cache-dir", "--require-hashes"]
    paths = ["-w", str(kept), "-r", str(pinned)]
    _pip(Path(sys.executable), "wheel", *flags, *paths, CMAKE_ARGS=arguments)
    built = _kept_wheel(kept)
    assert built is not None
    return built


def _kept_wheel(kept: Path) -> Path | None:
    return next(kept.glob(f"llama_cpp_python-{VERSION}-*.whl"), None)


def _pip(interpreter: Path, *arguments: str, **environment: str) -> None:
    done = subprocess.run(
        [str(interpreter), "-m", "pip", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-30:])
        raise PeerError(f"pip {arguments[0]} failed for {REQUIREMENT}; its last lines:\n{tail}")


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
