"""What all of `muser bench` shares: flags, the record's way to disk, the exit status of noise."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import CoercionError, Group, Parameter, Token

from muser.cli.whole import whole
from muser.errors import BusyError, UsageError

_WHAT = Group("What to measure", sort_key=0)
_GROUP = Group("Every measurement", sort_key=1)
_WHOLES = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*", re.ASCII)


def wholes(kind: object, tokens: Sequence[Token]) -> tuple[int, ...]:
    """The converter of flags that are lists such as 0,512."""
    if not _WHOLES.fullmatch(tokens[0].value):
        raise CoercionError(token=tokens[0], target_type=int)
    return tuple(map(int, tokens[0].value.split(",")))


def list_flag(text: str, *names: str, group: Group = _WHAT) -> Parameter:
    """A flag whose one word is a list of whole numbers."""
    return Parameter(
        name=names or None, help=text, group=group, converter=wholes, n_tokens=1, negative=()
    )


def number_flag(text: str, *names: str) -> Parameter:
    """A flag that is a whole number."""
    return Parameter(name=names or None, help=text, group=_WHAT, converter=whole)


def text_flag(text: str) -> Parameter:
    """A flag that is a word."""
    return Parameter(help=text, group=_WHAT)


def _switch(text: str) -> Parameter:
    return Parameter(help=text, group=_GROUP, negative=(), show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class MeasureFlags:
    """The flags of every measurement."""

    model: Annotated[
        str | None,
        Parameter(
            name=("--model", "-m"),
            help="A catalogue name or a GGUF file; default smollm2-135m.",
            group=_GROUP,
        ),
    ] = None
    repetitions: Annotated[
        int, Parameter(help="Counted repetitions.", group=_GROUP, converter=whole)
    ] = 5
    json: Annotated[bool, _switch("Print the record.")] = False
    allow_noise: Annotated[bool, _switch("Exit 0 even if the machine was busy.")] = False
    records: Annotated[
        Path | None, Parameter(help="Folder of the record; default Muser's own.", group=_GROUP)
    ] = None

    def check(self) -> None:
        if self.repetitions < 1:
            raise UsageError(f"{self.repetitions} repetitions are none.", "Ask for at least one.")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class CellFlags:
    """The flags of what is measured against a reference run."""

    threads: Annotated[
        tuple[int, ...] | None,
        list_flag("Threads, e.g. 1,2; default one a core.", "--threads", "-t", group=_GROUP),
    ] = None
    reference: Annotated[
        str | None,
        Parameter(
            help="Instruction set of the reference run, or cuda: that card in small steps; default"
            " the best plainer set.",
            group=_GROUP,
        ),
    ] = None
    device: Annotated[
        str, Parameter(help="Where Muser's side runs: cpu or cuda.", group=_GROUP)
    ] = "cpu"


def threads_of(flags: CellFlags) -> tuple[int, ...]:
    """Those asked for, or one a core; raises UsageError or LimitError for what cannot be.

    So does a device that is not here, before a model is fetched for it.
    """
    from muser.devices import default_threads, require_device, require_threads

    require_device(flags.device)
    threads = flags.threads or (default_threads(),)
    for count in threads:
        require_threads(count)
    return threads


def say(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)


def kept(record: Mapping[str, Any], flags: MeasureFlags, lines: Sequence[str]) -> None:
    """Write the record, show it, and raise what it failed of, or `BusyError` if it was noisy."""
    from muser import places
    from muser.bench.record import require, write

    path = write(record, flags.records or places.records())
    if flags.json:
        print(json.dumps(record))
    elif "failed" not in record:
        print("\n".join(lines))
    say(f"record    {path}")
    require(record)
    if not record["quiet"] and not flags.allow_noise:
        loud = ", ".join(_loud(record["noise"]))
        raise BusyError(
            f"The machine was not quiet: {loud}.",
            "End what else runs and measure again, or accept it with --allow-noise.",
        )


def _loud(noise: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [
        f"{name} it, others took {noise[name]['others']:.2f}, a hypervisor"
        f" {noise[name]['stolen']:.2f} processors"
        for name in ("before", "during", "after")
    ]
