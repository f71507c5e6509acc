"""A measurement in its surroundings: the machine before, during and after, and what it was."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from muser.bench import quiet
from muser.bench.digests import file_digest
from muser.bench.identity import machine_identity
from muser.bench.quiet import Noise, Reading
from muser.bench.record import SCHEMA, failure
from muser.errors import MuserError, UsageError


@dataclass(frozen=True, slots=True)
class Look:
    """How the machine is looked at: a reader of processor times, a sleep, a calendar."""

    read: Callable[[], Reading] = quiet.read
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    window: float = quiet.WINDOW

    def watch(self) -> Noise:
        return quiet.watch(self.window, self.read, self.sleep)


Sides = dict[str, Any]
"""`ours`, `theirs`: what each said it was, as soon as that is known."""


def recorded(
    kind: str, model: Path, body: Callable[[Sides], Mapping[str, Any]], look: Look | None = None
) -> dict[str, Any]:
    """What `body` measured, as a record: with its time, machine, model and noise.

    `quiet` is claimed only where all three looks found the machine so; a system without /proc
    cannot claim it. Where `body` raises a `MuserError` the record has no runs, but `failed`: see
    `muser.bench.record.require`. A `UsageError` is no run.
    """
    look = look or Look()
    about = {"file": model.name, "bytes": model.stat().st_size, "sha256": file_digest(model)}
    at = look.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    before = look.watch()
    first = look.read()
    measured = _outcome(body)
    during = Noise.between(first, look.read())
    looks = {"before": before, "during": during, "after": look.watch()}
    return {
        "schema": SCHEMA,
        "kind": kind,
        "at": at,
        "machine": machine_identity(),
        "model": about,
        "quiet": all(one.is_quiet for one in looks.values()),
        "noise": {name: asdict(one) for name, one in looks.items()},
        **measured,
    }


def _outcome(body: Callable[[Sides], Mapping[str, Any]]) -> Mapping[str, Any]:
    sides: Sides = {}
    try:
        return body(sides)
    except UsageError:
        raise
    except MuserError as problem:
        return {"runs": [], "failed": failure(problem, sides)}
