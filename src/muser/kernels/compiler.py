"""Finds a C compiler, names it exactly, and runs it with the flags of the exact contract."""

import errno
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from muser.errors import DeviceError
from muser.kernels.shelf import Shelf
from muser.kernels.source import Source

FLAGS = (
    "-std=c11",
    "-O3",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx512vnni")
ISA_FLAGS: Mapping[str, tuple[str, ...]] = {
    "c": (),
    "avx2": _AVX2,
    "avx512": (*_AVX512, "-mprefer-vector-width=512"),
    "amx": (*_AVX512, "-mamx-tile", "-mamx-int8", "-mprefer-vector-width=512"),
    "neon": ("-march=armv8.2-a+dotprod", "-DMUSER_NEON"),
    "neon_i8mm": ("-march=armv8.2-a+dotprod+i8mm", "-DMUSER_NEON"),
}
_REMEDIES: Mapping[str, str] = {
    "amx": "AMX needs gcc 11 or clang 11; MUSER_ISA=avx512 does without. ",
    "neon_i8mm": "SMMLA needs gcc 10 or clang 11; MUSER_ISA=neon does without. ",
}
CANDIDATES = ("cc", "clang", "gcc")
X86_64 = ("x86_64", "amd64")
ARM64 = ("aarch64", "arm64")


@dataclass(frozen=True, slots=True)
class Compiler:
    """`identity` is what `--version` prints and the target that `-dumpmachine` names."""

    command: tuple[str, ...]
    identity: str

    def flags(self, isa: str) -> tuple[str, ...]:
        """All flags that decide the bytes of a library."""
        # zig compiles for the very machine it runs on unless told otherwise.
        baseline = ("-mcpu=baseline",) if "ziglang" in self.command else ()
        return FLAGS + baseline + ISA_FLAGS[isa]

    def build(self, source: Source, isa: str, target: Path) -> None:
        """Compiles `source` into the shared object `target`.

        Raises `DeviceError` with the compiler's first complaint.
        """
        with tempfile.TemporaryDirectory(prefix="muser-") as folder:
            main = source.write_to(Path(folder))
            command = (*self.command, *self.flags(isa), main.name, "-o", str(target), "-lm")
            status, said = _run_whole(command, folder)
        empty = not target.exists() or target.stat().st_size == 0
        if status != 0 or empty:
            complaint = _complaint(said) or ("it wrote nothing" if empty else f"status {status}")
            raise DeviceError(
                f"{' '.join(self.command)} could not compile the kernels for {isa}: {complaint}.",
                _REMEDIES.get(isa, "") + _remedy(complaint),
            )


def find_compiler(
    environment: Mapping[str, str] = os.environ, shelf: Shelf | None = None
) -> Compiler:
    """`MUSER_CC`, else cc, clang or gcc on the path, else the ziglang wheel.

    A compiler whose file `shelf` has met in this very state is not asked for its version again.
    Raises `DeviceError` if there is none.
    """
    named = environment.get("MUSER_CC")
    if named:
        return _identify(_words(named), shelf)
    for name in CANDIDATES:
        path = shutil.which(name)
        if path:
            return _identify((path,), shelf)
    if find_spec("ziglang") is not None:
        return _identify((sys.executable, "-m", "ziglang", "cc"), None)
    raise DeviceError(
        "No C compiler is here, and the kernels are compiled at first use.",
        "Install one (for example gcc), run `pip install 'muser[cc]'`, or set MUSER_CC.",
    )


def _words(named: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(named))
    except ValueError:
        words = ()
    if not words:
        raise DeviceError(
            f"MUSER_CC is {named!r}, which names no command.",
            "Set MUSER_CC to a C compiler, or unset it.",
        )
    return words


def _run_whole(command: tuple[str, ...], folder: str) -> tuple[int, str]:
    """Status and complaints; an interrupt ends the compiler's own children too."""
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said = process.communicate()[1]
        except BaseException:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            raise
    return process.returncode, said


def _complaint(said: str) -> str:
    """The line that says why: a linker's closing line only repeats that it failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line and "ld returned" not in line]
    others = [line for line in lines if "ld returned" not in line]
    return next(iter(telling or others[-1:] or lines), "")


def _remedy(complaint: str) -> str:
    if os.strerror(errno.ENOSPC) in complaint:
        return f"Make room in {tempfile.gettempdir()}, or name another folder with TMPDIR."
    return "Set MUSER_CC to another C compiler (gcc 9 or clang 10 and later are known)."


def target_machine() -> str:
    return platform.machine().lower()


def isas_of(machine: str) -> tuple[str, ...]:
    """Instruction sets that this kind of machine can have."""
    if machine in X86_64:
        return ("c", "avx2", "avx512", "amx")
    return ("c", "neon", "neon_i8mm") if machine in ARM64 else ("c",)


def _identify(command: tuple[str, ...], shelf: Shelf | None) -> Compiler:
    name = _note_name(command) if shelf is not None else None
    if shelf is not None and name is not None and (known := shelf.note(name)):
        return Compiler(command, known)
    version = _ask(command, "--version")
    identity = f"{version}\n{_ask(command, '-dumpmachine')}"
    if shelf is not None and name is not None:
        shelf.remember(name, identity)
    return Compiler(command, identity)


def _note_name(command: tuple[str, ...]) -> str | None:
    """Changes with the command and its file's state; None for a script, which may call anything."""
    path = os.path.realpath(shutil.which(command[0]) or "")
    try:
        about = os.stat(path)
        with open(path, "rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        return None
    state = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    words = repr((command, path, state)).encode()
    return None if is_script else f"compiler-{hashlib.sha256(words).hexdigest()[:32]}"


def _ask(command: tuple[str, ...], question: str) -> str:
    try:
        done = subprocess.run((*command, question), capture_output=True, text=True, check=False)
    except OSError as error:
        raise DeviceError(
            f"The C compiler {command[0]!r} cannot be run: {error.strerror}.",
            "Set MUSER_CC to a C compiler, or unset it.",
        ) from error
    if done.returncode != 0:
        raise DeviceError(
            f"{' '.join(command)} {question} failed: {_complaint(done.stderr) or 'mute'}.",
            "Set MUSER_CC to a C compiler, or unset it.",
        )
    return done.stdout.strip()
