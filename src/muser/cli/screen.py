"""How an answer is shown: text as it comes, or one record; facts beside it on request."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from muser.cli.console import speaks_utf8, visible

if TYPE_CHECKING:
    from muser.engine import Generation


class Screen:
    """What the person sees: the text as it comes, or one record at the end."""

    def __init__(self, *, as_json: bool, verbose: bool, warnings: Sequence[str] = ()) -> None:
        self._as_json = as_json
        self._verbose = verbose
        self._warnings = tuple(warnings)
        self._written = 0

    def add(self, text: str) -> None:
        if text and not self._as_json:
            print(visible(text) if sys.stdout.isatty() else text, end="", flush=True)
            self._written += len(text)

    def end(self, made: "Generation | None") -> None:
        """The rest of the text, a newline, and what was asked for beside it.

        None: the computation failed, and the error begins a line of its own.
        """
        if made is None:
            print(end="\n" if self._written else "", flush=True)
            return
        if self._as_json:
            print(
                json.dumps(record(made, self._warnings), ensure_ascii=not speaks_utf8()), flush=True
            )
        else:
            self.add(made.text[self._written :])
            print(end="" if made.text.endswith("\n") else "\n", flush=True)
        if self._verbose:
            print("\n".join(facts(made)), file=sys.stderr)


def record(made: "Generation", warnings: Sequence[str] = ()) -> dict[str, Any]:
    """The answer as JSON; `logits_sha256` only where asked for, `warnings` only where given."""
    hashed = {} if made.logits_sha256 is None else {"logits_sha256": made.logits_sha256}
    return {
        "prompt_ids": list(made.prompt_ids),
        "ids": list(made.ids),
        "text": made.text,
        "finish_reason": made.finish_reason,
        "seed": made.seed,
        "timings": asdict(made.timings),
        "labels": {kind: list(labels) for kind, labels in made.labels.items()},
        "libraries": dict(made.libraries),
        **hashed,
        **({"warnings": list(warnings)} if warnings else {}),
    }


def facts(made: "Generation") -> Iterator[str]:
    """Speeds, seed, kernels and libraries, a line each."""
    times = made.timings
    later = max(times.tokens - 1, 0)  # the first token comes out of the prompt's last step
    yield f"loaded    in {times.load_s:.2f} s"
    yield f"prompt    {_tokens(times.prompt_tokens)} {_speed(times.prompt_tokens, times.prefill_s)}"
    drawn = "" if made.seed is None else f"; seed {made.seed}"
    speed = f", all but the first {_speed(later, times.decode_s)}" if later else ""
    yield f"answer    {_tokens(times.tokens)}{speed}, then {made.finish_reason}{drawn}"
    for type_name, labels in made.labels.items():
        yield f"{type_name:9} {', '.join(labels)}"
    for name, digest in made.libraries.items():
        yield f"library   {name} {digest}"
    if made.logits_sha256 is not None:
        yield f"logits    {made.logits_sha256}"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _speed(tokens: int, seconds: float) -> str:
    rate = f", {tokens / seconds:.1f} tok/s" if seconds > 0 else ""
    return f"in {seconds:.2f} s{rate}"
