"""What building a peer takes: where builds are kept, ggml's switches for this CPU, pip."""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from muser import places

# ggml's switch and the /proc/cpuinfo flags that must all be there.
SWITCHES: Mapping[str, tuple[str, ...]] = {
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
# What gcc 12 must not get; see llama_cpp_python.py.
CLANG_SWITCHES: Mapping[str, tuple[str, ...]] = {
    **SWITCHES,
    "GGML_AVX_VNNI": ("avx_vnni",),
    "GGML_AMX_TILE": ("amx_tile",),
    "GGML_AMX_INT8": ("amx_int8",),
    "GGML_AMX_BF16": ("amx_bf16",),
}
TAIL_LINES = 30


class PeerError(Exception):
    """The peer is missing or cannot be built; the message says what to do."""


def shelf() -> Path:
    """The folder of all builds: `MUSER_PEERS`, else `peers` in Muser's cache folder."""
    named = os.environ.get("MUSER_PEERS")
    return Path(named).expanduser().absolute() if named else places.home() / "peers"


def key(*said: str) -> str:
    """The end of a build's folder name: sixteen letters for all that decides its bits."""
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def ggml_switches(
    cpu_flags: frozenset[str], switches: Mapping[str, tuple[str, ...]] = SWITCHES
) -> list[str]:
    """The switches of an x86 build for a CPU with these flags.

    AVX-512 and AMX extensions count only with their bases, since ggml compiles them together.
    """
    on = {name for name, needed in switches.items() if cpu_flags.issuperset(needed)}
    if "GGML_AVX512" not in on:
        on = {name for name in on if not name.startswith(("GGML_AVX512", "GGML_AMX"))}
    if not on.issuperset(("GGML_AMX_TILE", "GGML_AMX_INT8")):
        on = {name for name in on if not name.startswith("GGML_AMX")}
    each = [f"-D{name}={'ON' if name in on else 'OFF'}" for name in switches]
    return ["-DGGML_NATIVE=OFF", *each]


def host_flags() -> frozenset[str] | None:
    """The CPU's flags on Linux on x86, else None."""
    information = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not information.exists():
        return None
    line = next(line for line in information.read_text().splitlines() if line.startswith("flags"))
    return frozenset(line.split(":")[1].split())


def pip(what: str, interpreter: Path, *arguments: str, **environment: str) -> None:
    """Run pip. Raises `PeerError` with its last lines when it fails."""
    call(f"pip {arguments[0]} for {what}", [interpreter, "-m", "pip", *arguments], **environment)


def call(what: str, command: list[str | Path], **environment: str) -> str:
    """Run a command and return what it said. Raises `PeerError` with its last lines."""
    try:
        done = subprocess.run(
            list(map(str, command)),
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as missing:
        raise PeerError(f"{what}: {missing}.") from missing
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-TAIL_LINES:])
        raise PeerError(f"{what} failed (status {done.returncode}); its last lines:\n{tail}")
    return done.stdout


def version_of(compiler: Path, line: int = 0) -> str:
    """A line of what a compiler says of its version."""
    return call(f"{compiler.name} --version", [compiler, "--version"]).splitlines()[line]


def told(line: str) -> None:
    """A line of progress, on standard error."""
    print(line, file=sys.stderr, flush=True)
