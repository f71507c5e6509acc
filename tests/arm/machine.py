"""An aarch64 CPython with NumPy, emulated by qemu-user: where tests of ARM kernels run on x86.

Debian's own arm64 packages are fetched by an apt that has a state of its own, and unpacked; nothing
is installed, and no rights are needed. Wheels come from pip. Both are kept in Muser's cache folder.
Compilers and shells that the emulated interpreter starts are this machine's own programs.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from muser import places

REPOSITORY = Path(__file__).parents[2]
COMPILER = "aarch64-linux-gnu-gcc"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
PACKAGES = ("python3", "libstdc++6")
WHEELS = ("numpy", "pytest", "platformdirs")
LIMIT = 1200.0  # seconds; the longest run takes 120 to 330 on two cores
TIMED_OUT = 124
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64")


class Unavailable(Exception):
    """Why this computer cannot emulate an ARM one, and what would change that."""


@dataclass(frozen=True)
class Machine:
    """`folder` holds `root`, Debian's files, and `site`, the wheels."""

    folder: Path

    @property
    def python(self) -> Path:
        """A script: the kernel of this machine can start it, and so can emulated programs."""
        return self.folder / "root/usr/bin/python"

    def environment(self, cpu: str) -> dict[str, str]:
        """`cpu`: one of `qemu-aarch64 -cpu help`, with its switches."""
        path = os.pathsep.join(
            str(part) for part in (self.folder / "site", REPOSITORY / "src", REPOSITORY)
        )
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(Path.home()),
            "MUSER_HOME": str(places.home()),
            "MUSER_CC": COMPILER,
            "PYTHONPATH": path,
            "PYTHONPYCACHEPREFIX": str(self.folder / "pycache"),
            "OPENBLAS_NUM_THREADS": "1",
            "QEMU_CPU": cpu,
            "QEMU_LD_PREFIX": str(self.folder / "root"),
        }

    def run(self, cpu: str, *arguments: str, limit: float = LIMIT) -> subprocess.CompletedProcess:
        """The interpreter with these arguments, in the repository; errors go to its output.

        What has not ended after `limit` seconds is killed and has the status of timeout(1).
        """
        command = (str(self.python), *arguments)
        with tempfile.TemporaryFile() as said:
            try:
                status = subprocess.run(
                    command,
                    cwd=REPOSITORY,
                    env=self.environment(cpu),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    timeout=limit,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                said.write(f"\nkilled: no end after {limit:g} s\n".encode())
                status = TIMED_OUT
            said.seek(0)
            return subprocess.CompletedProcess(
                command, status, said.read().decode(errors="replace")
            )


def prepare() -> Machine:
    """The machine, made now if it is not in the cache. Raises `Unavailable`."""
    tools = {name: _tool(*names) for name, names in TOOLS.items()}
    release = platform.freedesktop_os_release()
    identity = f"{release.get('ID')} {release.get('VERSION_ID')}\n{Path(__file__).read_text()}"
    folder = places.home() / f"arm-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".arm-", dir=folder.parent) as name:
            _make(Path(name) / "new", folder, tools)
    return Machine(folder)


TOOLS = {
    "emulator": EMULATORS,
    "compiler": (COMPILER,),
    "apt-get": ("apt-get",),
    "dpkg-deb": ("dpkg-deb",),
}


def _tool(*names: str) -> str:
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise Unavailable(
            f"{names[0]} is not here; on Debian,"
            " `apt-get install qemu-user gcc-aarch64-linux-gnu` brings it"
        )
    return found


def _make(fresh: Path, final: Path, tools: dict[str, str]) -> None:
    """Fills `fresh` and renames it; whoever comes second keeps the first one's."""
    root = fresh / "root"
    root.mkdir(parents=True)
    for package in _fetch(fresh / "apt", tools["apt-get"]):
        _do(tools["dpkg-deb"], "--extract", str(package), str(root))
    shutil.rmtree(fresh / "apt")
    interpreter = (root / "usr/bin/python3").resolve().name
    if not (root / "usr/bin" / interpreter).is_file():
        raise Unavailable("Debian's arm64 packages hold no python3 where it is looked for")
    _install_wheels(fresh / "site", interpreter.removeprefix("python"))
    script = root / "usr/bin/python"
    # What qemu is told to call argv[0] becomes sys.executable, so that children come here too.
    script.write_text(
        f'#!/bin/sh\nexec "{tools["emulator"]}" -0 "$0" "{final}/root/usr/bin/{interpreter}" "$@"\n'
    )
    script.chmod(0o755)
    try:
        fresh.rename(final)
    except OSError:
        if not final.is_dir():
            raise


def _fetch(folder: Path, apt: str) -> list[Path]:
    """PACKAGES for arm64 and all that they depend on, by the system's sources."""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "1",
        "Dir::State": folder,
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _do(apt, *options, "--error-on=any", "update")
    _do(apt, *options, "install", "--download-only", "-y", "--no-install-recommends", *PACKAGES)
    return sorted((folder / "cache/archives").glob("*.deb"))


def _install_wheels(folder: Path, version: str) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    _do(
        sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder),
        "--only-binary=:all:", "--implementation", "cp", "--python-version", version,
        *platforms, *WHEELS,
    )  # fmt: skip


def _do(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise Unavailable(f"{Path(command[0]).name} failed: {said[-1] if said else 'mute'}")
