"""What a comparison asks of an engine: a side, which works in a process of its own.

A side's process speaks JSON lines: requests on its standard input, one answer each on its standard
output (`muser.bench.answering` is that end of the pipe). Its libraries, threads and memory are its
own, and its clock is read inside it.

    {"do": "identity"}                                      -> see `Side.identity`
    {"do": "load", "model", "threads", "context", "slots"}  -> {"ns", "before", "after"}
    {"do": "decode", "prompts", "fed", "margins"}           -> {"ids", "ns"}, see `Sample`
    {"do": "prefill", "ids", "margins"}                     -> {"ids", "ns"}, see `Sample`
    {"do": "memory"}                                        -> see `Memory`

Refusals are {"error": sentence, "remedy": sentence}. The process ends when its input does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a process: resident, its anonymous and file-backed parts, the highest so far."""

    rss: int
    anonymous: int
    file: int
    peak: int


@dataclass(frozen=True, slots=True)
class Loading:
    """Nanoseconds until the model could take its first token, and memory around that."""

    ns: int
    before: Memory
    after: Memory


@dataclass(frozen=True, slots=True)
class Sample:
    """One piece of timed work.

    `ids`: the first choice (largest logit, then lowest id) after every fed token, slot after slot;
    of a prefill the one after its last token. `ns`: wall time from before the first fed token until
    the last choice was made. `logits_sha256`: a digest for each slot, of its last row of logits as
    little-endian f32. `margins`: where asked for, first minus second logit at each of `ids`.
    """

    ids: tuple[int, ...]
    ns: int
    logits_sha256: tuple[str, ...] | None = None
    margins: tuple[float, ...] | None = None


class Side(Protocol):
    """An engine in a process of its own, with at most one model loaded."""

    name: str

    def identity(self) -> Mapping[str, Any]:
        """What runs: `engine`, `version`, `build`, `libraries` (name to SHA-256),
        `instruction_sets`, `settings`; complete once something was computed.
        """

    def load(self, model: Path, *, threads: int, context: int, slots: int = 1) -> Loading:
        """Open a model, in place of the one before; `context` positions for each slot."""

    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        fed: Sequence[Sequence[int]],
        *,
        margins: bool = False,
    ) -> Sample:
        """From empty caches: each slot takes its prompt untimed, then, timed, its fed tokens.

        A step feeds one token to every slot and chooses from every slot's logits; end-of-text
        tokens have no meaning. One prompt and one list of fed tokens a slot, equally many each; a
        prompt may be empty.
        """

    def prefill(self, ids: Sequence[int], *, margins: bool = False) -> Sample:
        """From an empty cache: all of `ids`, timed, and the choice after the last."""

    def memory(self) -> Memory:
        """Of the side's process, now."""

    def close(self) -> None:
        """End the process. A second call has no effect."""
