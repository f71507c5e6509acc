"""`muser run`: one prompt in, its continuation out as it comes."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from muser.cli.console import last_words
from muser.cli.progress import narrated, obtained
from muser.cli.prompt import asked, checked, given
from muser.cli.pump import pumped
from muser.cli.sampling_flags import SamplingFlags
from muser.cli.screen import Screen
from muser.cli.whole import whole
from muser.errors import UsageError

if TYPE_CHECKING:
    from muser.engine import Engine, Sampling, Stream

DEFAULT_TOKENS = 256
DEFAULT_DEVICE = "cpu"
_WHAT = Group("What to run", sort_key=0)
_OUTPUT = Group("Output", sort_key=1)


def _flag(text: str, *names: str, group: Group = _WHAT) -> Parameter:
    return Parameter(name=names or None, help=text, group=group, negative=())


def _switch(text: str, group: Group = _WHAT) -> Parameter:
    """A flag whose default, off or none, is not worth showing."""
    return Parameter(help=text, group=group, negative=(), show_default=False)


def _whole(text: str, *names: str, group: Group = _WHAT) -> Parameter:
    return Parameter(name=names or None, help=text, group=group, converter=whole)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class RunFlags:
    """The flags of `muser run` that do not choose tokens."""

    model: Annotated[
        str | None,
        _flag("A catalogue name or a GGUF file; default smollm2-135m.", "--model", "-m"),
    ] = None
    file: Annotated[
        Path | None, _flag("Read the prompt from a file; - is standard input.", "--file", "-f")
    ] = None
    system: Annotated[str | None, _flag("A system message for the chat template.")] = None
    raw: Annotated[bool, _switch("Continue the prompt as it is, without the template.")] = False
    ctx_size: Annotated[
        int | None,
        _whole("Tokens that fit; default the model's, at most 4096.", "--ctx-size", "-c"),
    ] = None
    threads: Annotated[
        int | None, _whole("Threads; by default the cores granted.", "--threads", "-t")
    ] = None
    accept_terms: Annotated[bool, _switch("Accept the terms that the model comes under.")] = False
    device: Annotated[str, _flag("cpu; cuda; or oracle: the arithmetic in NumPy, slow.")] = (
        DEFAULT_DEVICE
    )
    max_tokens: Annotated[
        int | None,
        _whole("Most tokens to answer; default 256.", "--max-tokens", "-n", group=_OUTPUT),
    ] = None
    stop: Annotated[
        tuple[str, ...], _switch("Stop before this text; repeatable.", group=_OUTPUT)
    ] = ()
    json: Annotated[bool, _switch("Print one JSON record at the end.", group=_OUTPUT)] = False
    verbose: Annotated[
        bool, _switch("Say speeds and kernels on standard error.", group=_OUTPUT)
    ] = False
    hash_logits: Annotated[bool, _switch("Add the logits' SHA-256 to either.", group=_OUTPUT)] = (
        False
    )


def run(
    prompt: Annotated[
        str | None,
        _flag(
            "The prompt, in quotes; else -f, a pipe, or you are asked. - is standard input: a"
            " prompt that is a hyphen comes from -f or a pipe."
        ),
    ] = None,
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
    _check_device(flags.device)
    path = obtained(flags.model, accept_terms=flags.accept_terms)

    import muser

    with narrated() as warnings:
        engine = muser.load(
            path,
            device=flags.device,
            threads=flags.threads,
            context=flags.ctx_size,
            expects_chat=not flags.raw,
            last_words=last_words,
        )
    with engine:
        stream = _asked(engine, asked() if text is None else text, flags, sampling)
        screen = Screen(as_json=flags.json, verbose=flags.verbose, warnings=warnings)
        try:
            with closing(pumped(stream, engine.cancel)) as pieces:
                for piece in pieces:
                    screen.add(piece.text)
        finally:
            screen.end(stream.generation)  # also when it was cut short


def _check(flags: RunFlags) -> None:
    for stop in flags.stop:
        checked(stop, "--stop")
    if flags.system is not None:
        checked(flags.system, "--system")
        if flags.raw:
            raise UsageError(
                "--system needs the chat template, which --raw leaves out.",
                "Leave out --system or --raw.",
            )
    if flags.hash_logits and not (flags.json or flags.verbose):
        raise UsageError(
            "--hash-logits has nowhere to say the hash.", "Add --json or --verbose to it."
        )


def _check_device(name: str) -> None:
    """Before a model is fetched for it."""
    if name != DEFAULT_DEVICE:
        from muser.devices import require_device

        require_device(name)


def _asked(engine: "Engine", prompt: str, flags: RunFlags, sampling: "Sampling") -> "Stream":
    """The request, checked; without -n the answer is bounded by less than the context."""
    if flags.system is not None and engine.template is None:
        raise UsageError(
            "This model has no chat template, so it takes no system message.",
            "Leave out --system.",
        )

    def ask(most: int | None) -> "Stream":
        return engine.stream(
            prompt,
            max_tokens=most,
            sampling=sampling,
            stop=flags.stop,
            system=flags.system,
            raw=flags.raw or engine.template is None,
            hash_logits=flags.hash_logits,
        )

    stream = ask(flags.max_tokens)
    if flags.max_tokens is None and stream.request.max_tokens > DEFAULT_TOKENS:
        return ask(DEFAULT_TOKENS)
    return stream
