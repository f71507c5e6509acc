"""How many threads compute by default: processors of this process, and its control group's quota.

A container's quota is processor time, not processors: threads beyond it are stopped all at once,
in the middle of a step, until the next period begins.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from muser.errors import LimitError, UsageError
from muser.kernels import MAX_THREADS

LARGEST = 1 << 20  # bytes of a file of /proc or of a control group; one machine has a few kB
_ESCAPED = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}  # proc(5), mountinfo


def default_threads(root: Path = Path("/")) -> int:
    """Processors that this process may run on, or its quota to the nearest whole one if that is
    less; at least one. Control groups are read below `root`.
    """
    allowed, granted = allowed_processors(), quota(root)
    if granted is not None:
        allowed = min(allowed, math.floor(granted + 0.5))
    return max(1, min(allowed, MAX_THREADS))


def require_threads(count: int) -> None:
    """Raises UsageError for fewer than one, LimitError for more than the device has room for."""
    if count < 1:
        raise UsageError(f"{count} threads cannot compute.", "Ask for at least one.")
    if count > MAX_THREADS:
        raise LimitError(
            f"{count} threads are too many for the CPU device.", f"Ask for at most {MAX_THREADS}."
        )


def allowed_processors() -> int:
    """By affinity, which also holds a control group's set of processors."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that the control groups grant; None where none sets a limit.

    The least of this process's group and all above it, in both versions of control groups
    (Linux, Documentation/admin-guide/cgroup-v2.rst `cpu.max`; scheduler/sched-bwc.rst).
    """
    mounts = tuple(_mounts(root))
    limits = [
        limit
        for version, path in _memberships(root)
        for mount in mounts
        if mount.version == version
        for folder in _upward(root, mount, path)
        if (limit := _limit(folder, version)) is not None
    ]
    return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class _Mount:
    """A hierarchy that rules processor time: the group `top` of it is seen at `place`."""

    version: int
    top: str
    place: str


def _memberships(root: Path) -> Iterator[tuple[int, str]]:
    """`number:controllers:path` a line; version 2 has number 0 and no controllers."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, path
        elif "cpu" in controllers.split(","):
            yield 1, path


def _mounts(root: Path) -> Iterator[_Mount]:
    """Fields of a line: id, parent, device, top, place, options…, `-`, type, source, options."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        top, place = _plain(fields[3]), _plain(fields[4])
        if kind[0] == "cgroup2":
            yield _Mount(2, top, place)
        elif kind[0] == "cgroup" and "cpu" in kind[2].split(","):
            yield _Mount(1, top, place)


def _upward(root: Path, mount: _Mount, path: str) -> Iterator[Path]:
    """The folder of the group `path` and those above it, up to the mount's own.

    A container may see its own group as the top of the mount while the path names it from outside.
    """
    inside = PurePosixPath(path)
    if inside.is_relative_to(mount.top):
        inside = inside.relative_to(mount.top)
    parts = [part for part in inside.parts if part not in ("/", "..")]
    place = root / mount.place.lstrip("/")
    for depth in range(len(parts), -1, -1):
        yield place.joinpath(*parts[:depth])


def _limit(folder: Path, version: int) -> float | None:
    if version == 2:
        words = " ".join(_lines(folder / "cpu.max")).split()
    else:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [word for name in names for word in _lines(folder / name)]
    try:
        granted, period = map(int, words)
    except ValueError:
        return None  # `max`, or no such group
    return granted / period if granted > 0 and period > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []


def _plain(field: str) -> str:
    for escape, char in _ESCAPED.items():
        field = field.replace(escape, char)
    return field
