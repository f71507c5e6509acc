"""`muser bench start`: the wall time of `muser run -n 1`, the whole process, cold and warm.

Cold: nothing is on the shelf, so the kernels are compiled (and weights packed, where they are).
Warm: a second and later run. The model's file is in the page cache either way.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from muser import places
from muser.bench.identity import build_identity
from muser.bench.lock import alone
from muser.bench.look import Look, Sides, recorded
from muser.bench.ours import reference_side
from muser.bench.session import Say, tokenizer_of
from muser.bench.spread import Spread
from muser.errors import DeviceError, WrongTokens

PROMPT = "The capital of France is"
Runs = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Expected:
    """The prompt's ids and the first choice after them, by the reference."""

    prompt_ids: tuple[int, ...]
    token: int

    def require(self, said: Mapping[str, Any]) -> None:
        """Raises `WrongTokens` for any other answer."""
        if (tuple(said["prompt_ids"]), said["ids"]) != (self.prompt_ids, [self.token]):
            raise WrongTokens(
                f"`muser run -n 1` answered {said['ids']}, the reference [{self.token}].",
                "No time is told for wrong tokens; this is a defect of Muser, please report it.",
            )


NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Set, every module of a source tree is compiled anew; an installed Muser has bytecode."""


def timed_process(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Wall nanoseconds and standard output; the process may keep bytecode, as if installed.

    Raises `DeviceError` if it fails.
    """
    inherited = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    start = perf_counter_ns()
    done = subprocess.run(
        command,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    took = perf_counter_ns() - start
    if done.returncode:
        last = done.stderr.strip().splitlines()[-2:] or [f"status {done.returncode}"]
        raise DeviceError(f"`muser run` failed: {' '.join(last)}", "Run it by hand to see why.")
    return took, done.stdout


def run_start(
    model: Path,
    repetitions: int,
    reference: str,
    *,
    cold: int | None = None,
    run: Runs = timed_process,
    say: Say = lambda line: None,
    look: Look | None = None,
) -> dict[str, Any]:
    """The record of cold and warm starts, five words in and one token out; of failed ones too.

    `cold` is how many of the cold ones, at least one; as many as of the warm ones by default.
    """
    with alone(places.home()):
        say(f"Reference run ({reference}).")
        ids = tokenizer_of(model)(PROMPT)
        with reference_side(reference) as side:
            side.load(model, threads=1, context=len(ids) + 1)
            expected = Expected(tuple(ids), side.greedy(ids, 1)[0][0])

        def body(known: Sides) -> dict[str, Any]:
            counts = (cold or repetitions, repetitions)
            return {"runs": [_starts(model, counts, expected, run, known, say)]}

        record = recorded("start", model, body, look)
    return {**record, "repetitions": repetitions}


def _starts(
    model: Path,
    counts: tuple[int, int],
    expected: Expected,
    run: Runs,
    known: Sides,
    say: Say,
) -> dict[str, Any]:
    flags = ("--raw", "-m", str(model.absolute()), "-n", "1", "--json", PROMPT)
    command = (sys.executable, "-m", "muser", "run", *flags)

    def once(home: str) -> int:
        took, output = run(command, {"MUSER_HOME": home})
        said = json.loads(output)
        if not known:
            known["ours"] = _identity(said["libraries"])
        expected.require(said)
        return took

    cold, (colds, warms) = [], counts
    for number in range(colds):
        say(f"cold start {number + 1} of {colds}")
        with tempfile.TemporaryDirectory(prefix="muser-start-") as home:
            cold.append(once(home))
    say("warm starts")
    with tempfile.TemporaryDirectory(prefix="muser-start-") as home:
        once(home)
        warm = [once(home) for _ in range(warms)]
    return {"sides": dict(known), "cold": told(cold), "warm": told(warm)}


def _identity(libraries: Mapping[str, str]) -> dict[str, Any]:
    return {**build_identity(), "libraries": libraries, "instruction_sets": sorted(libraries)}


def told(ns: Sequence[int]) -> dict[str, Any]:
    """A spread of wall times, for a record."""
    spread = Spread.of(ns)
    return {
        "ns": list(spread.ns),
        "median_ns": spread.median,
        "least_ns": spread.least,
        "most_ns": spread.most,
        "cv": round(spread.cv, 6),
    }
