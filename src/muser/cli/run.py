"""`muser run`: one prompt in, its continuation out as it comes."""

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from muser.cli.progress import obtained
from muser.cli.prompt import asked, given
from muser.cli.pump import pumped
from muser.cli.sampling_flags import SamplingFlags
from muser.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from muser.engine import Engine, Generation

_WHAT = Group("What to run", sort_key=0)
_OUTPUT = Group("Output", sort_key=1)


def _flag(text: str, *names: str, group: Group = _WHAT) -> Parameter:
    return Parameter(name=names or None, help=text, group=group, negative=())


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class RunFlags:
    """The flags of `muser run` that do not choose tokens."""

    model: Annotated[str | None, _flag("A catalogue name or a GGUF file's path.")] = None
    file: Annotated[Path | None, _flag("Read the prompt from a file.", "--file", "-f")] = None
    system: Annotated[str | None, _flag("A system message for the chat template.")] = None
    raw: Annotated[bool, _flag("Continue the prompt as it is, without the template.")] = False
    ctx_size: Annotated[int | None, _flag("Positions to make room for.")] = None
    threads: Annotated[int | None, _flag("Threads; by default one a core.")] = None
    device: Annotated[str, _flag("Where to compute.")] = "cpu"
    max_tokens: Annotated[
        int, _flag("Stop after this many.", "--max-tokens", "-n", group=_OUTPUT)
    ] = 256
    stop: Annotated[
        tuple[str, ...], _flag("Stop before this text; repeatable.", group=_OUTPUT)
    ] = ()
    json: Annotated[bool, _flag("Print one JSON record at the end.", group=_OUTPUT)] = False
    hash_logits: Annotated[bool, _flag("Add the logits' SHA-256 to it.", group=_OUTPUT)] = False
    verbose: Annotated[bool, _flag("Say speeds and kernels on stderr.", group=_OUTPUT)] = False


def run(
    prompt: Annotated[str | None, _flag("The prompt; else -f, a pipe, or you are asked.")] = None,
    /,
    *,
    flags: RunFlags | None = None,
    choice: SamplingFlags | None = None,
) -> None:
    """Continue a prompt; greedy and through the model's chat template unless told otherwise."""
    flags = flags or RunFlags()
    _check(flags)
    sampling = (choice or SamplingFlags()).sampling()
    text = given(prompt, flags.file)
    path = obtained(flags.model)

    import muser

    engine = muser.load(path, device=flags.device, threads=flags.threads, context=flags.ctx_size)
    print(engine, sampling, text)
