"""llama.cpp as a side: a libllama by path, or the one inside llama-cpp-python.

Settings of both: flash attention and buffer types as llama.cpp chooses, file mapped, f16 cache,
as many threads for prompts as for single tokens; `batch`, n_batch and n_ubatch, is llama.cpp's own
512 unless said, and `layers`, n_gpu_layers, its own choice. A step of decoding ends when the
first choice has been made from its logits, as Muser's does.
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from muser.bench.process import WorkerSide
from muser.errors import DeviceError, UsageError

HERE = Path(__file__).parent
WORKER = HERE / "llama_worker.py"
SHIM = HERE / "llama.c"
BATCH, MOST = 512, 4096  # tokens at once: llama.cpp's n_ubatch, and what llama.c has room for
REMEDY = "Name the libllama of a llama.cpp build, e.g. build/bin/libllama.so."


class LlamaLibrarySide(WorkerSide):
    """The build whose libllama lies at `library`.

    Needs that build's headers, in `include` beside it or above it or in its source tree, and a C
    compiler: a shim is compiled against them. Raises `UsageError` for a path that is no such
    library, `DeviceError` where headers or compiler are missing or the headers are another build's.
    """

    after_crash = (
        "If `readelf -d` names no libstdc++.so.6 for its libraries, they have copies of their own"
        " which get mixed up here: set LD_PRELOAD to that library. "
    )

    def __init__(
        self,
        library: Path,
        *,
        name: str = "llama.cpp",
        batch: int = BATCH,
        layers: int | None = None,
    ) -> None:
        chosen = settings(batch, layers)
        library = found_library(library)
        self._folder = tempfile.TemporaryDirectory(prefix="muser-rival-")
        shim = Path(self._folder.name) / "shim.so"
        try:
            compile_shim(library, shim)
            command = (sys.executable, str(WORKER), *chosen, "library", str(shim), str(library))
            super().__init__(name, command)
        except BaseException:
            self._folder.cleanup()
            raise

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


class LlamaPythonSide(WorkerSide):
    """The `llama_cpp` package of the Python interpreter at `python` (None: of this one).

    Raises `UsageError` where that interpreter cannot import it.
    """

    def __init__(
        self,
        python: Path | None = None,
        *,
        name: str = "llama-cpp-python",
        batch: int = BATCH,
        layers: int | None = None,
    ) -> None:
        chosen = settings(batch, layers)
        interpreter = str(python or sys.executable)
        if not has_package(interpreter, "llama_cpp"):
            raise UsageError(f"{interpreter} has no llama_cpp.", "Install llama-cpp-python there.")
        super().__init__(name, (interpreter, str(WORKER), *chosen, "bindings"))


def settings(batch: int, layers: int | None) -> tuple[str, str]:
    """The worker's first two arguments. Raises `UsageError`."""
    if not 1 <= batch <= MOST:
        raise UsageError(f"A batch of {batch} tokens is none.", f"Ask for 1 to {MOST}.")
    return str(batch), "-" if layers is None else str(layers)


def has_package(interpreter: str, package: str) -> bool:
    """Whether a Python interpreter finds an importable package of that name."""
    if interpreter == sys.executable:
        return importlib.util.find_spec(package) is not None
    question = f"from importlib.util import find_spec; raise SystemExit(not find_spec({package!r}))"
    try:
        done = subprocess.run([interpreter, "-c", question], check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def found_library(path: Path) -> Path:
    """libllama itself, or the one in a folder. Raises `UsageError`."""
    if path.is_dir():
        names = (path / f"libllama{ending}" for ending in (".so", ".dylib"))
        path = next((name for name in names if name.is_file()), path)
    if not path.is_file():
        raise UsageError(f"No libllama is at {path}.", REMEDY)
    return path.resolve()


def include_folders(library: Path) -> tuple[Path, ...]:
    """The folders that hold llama.h and ggml.h for a library. Raises `DeviceError`."""
    found = []
    for header in ("llama.h", "ggml.h"):
        folder = next((f for f in _candidates(library.parent) if (f / header).is_file()), None)
        if folder is None:
            raise DeviceError(
                f"There is no {header} for {library}.",
                "Put the headers of that very build into a folder `include` beside the library.",
            )
        found.append(folder)
    return tuple(dict.fromkeys(found))


def _candidates(folder: Path) -> Iterator[Path]:
    for above in (folder, folder.parent, folder.parent.parent):
        yield above / "include"
        yield above / "ggml" / "include"


def compile_shim(library: Path, target: Path) -> None:
    """Compile the shim against a library's own headers. Raises `DeviceError`."""
    from muser.kernels import find_compiler

    includes = [f"-I{folder}" for folder in include_folders(library)]
    siblings = sorted(library.parent.glob(f"libggml*{library.suffix}"))
    flags = ["-std=c11", "-O3", "-fPIC", "-shared", f"-Wl,-rpath,{library.parent}"]
    command = [*find_compiler().command, *flags, *includes, str(SHIM), "-o", str(target)]
    done = subprocess.run(
        [*command, str(library), *map(str, siblings)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), "")
        raise DeviceError(
            f"The shim for {library} does not compile: {complaint or 'no reason was given'}.",
            "It needs llama.cpp's headers and libraries of late 2025 or newer.",
        )
