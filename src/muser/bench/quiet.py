"""Whether a machine was quiet: what others took of its processors, before, during and after.

From /proc alone: `stat` has the busy and the stolen time of all processors, `<pid>/stat` that of
this process and of what it started. What is left is others'.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WINDOW = 2.0  # seconds of looking, before and after
MOST_OTHERS = 0.10  # processors that others may take
MOST_STOLEN = 0.05  # processors that a hypervisor may take away
# Fields of /proc/stat's first line, after the name: see proc(5).
USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL = range(8)
# Fields of /proc/<pid>/stat after the name in parentheses.
PARENT, TIMES = 1, slice(11, 15)  # utime, stime and those of ended children


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds of processor time since the system started, at `at` on a steady clock.

    `own` is the part of `busy` that this process and its children took; `load` the load average
    of the last minute, which remembers also what is over.
    """

    at: float
    busy: float
    stolen: float
    own: float
    load: float


@dataclass(frozen=True, slots=True)
class Noise:
    """Between two readings: processors taken by others, and by a hypervisor; the load average."""

    seconds: float
    others: float
    stolen: float
    load: float

    @property
    def is_quiet(self) -> bool:
        return self.others <= MOST_OTHERS and self.stolen <= MOST_STOLEN

    @classmethod
    def between(cls, first: Reading, last: Reading) -> "Noise":
        seconds = last.at - first.at
        others = (last.busy - first.busy) - (last.own - first.own)
        return cls(
            seconds=round(seconds, 3),
            others=round(max(0.0, others) / seconds, 4),
            stolen=round(max(0.0, last.stolen - first.stolen) / seconds, 4),
            load=last.load,
        )


def read(proc: Path = Path("/proc"), own: int | None = None) -> Reading:
    """Where there is no such /proc, all is others': such a system never counts as quiet."""
    if not (proc / "stat").exists():
        now = time.monotonic()
        return Reading(at=now, busy=now, stolen=0.0, own=0.0, load=0.0)
    ticks = os.sysconf("SC_CLK_TCK")
    words = (proc / "stat").read_text().split("\n", 1)[0].split()[1:]
    time_of = [int(word) / ticks for word in words[:8]]
    working = (USER, NICE, SYSTEM, IRQ, SOFTIRQ)
    return Reading(
        at=time.monotonic(),
        busy=sum(time_of[field] for field in working),
        stolen=time_of[STEAL],
        own=_taken_by(proc, own or os.getpid()) / ticks,
        load=float((proc / "loadavg").read_text().split()[0]),
    )


def watch(
    seconds: float = WINDOW,
    reader: Callable[[], Reading] = read,
    sleep: Callable[[float], None] = time.sleep,
) -> Noise:
    """What others do while this process waits."""
    first = reader()
    sleep(seconds)
    return Noise.between(first, reader())


def _taken_by(proc: Path, root: int) -> int:
    """Clock ticks of a process and all that descend from it, ended children included."""
    parents, times = {}, {}
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(folder.name)] = int(words[PARENT])
            times[int(folder.name)] = sum(map(int, words[TIMES]))
    family, fresh = set[int](), {root}
    while fresh:
        family |= fresh
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - family
    return sum(times.get(pid, 0) for pid in family)
