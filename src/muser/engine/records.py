"""What a generation hands back."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """One emitted token and the text that became final with it (often none, or several letters)."""

    text: str
    id: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds on the wall: until the first token (`prefill`), and for all others (`decode`).

    What a caller does between two pieces is in neither.
    """

    load_s: float
    prefill_s: float
    decode_s: float
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer and everything needed to say how it came about.

    `ids` holds every picked token, the stop token included; `text` neither that nor a stop string.
    `finish_reason` is `stop`, `length` or `cancelled`. `seed` is None where nothing was drawn.
    `labels` names every pipeline that was played, under the tensor type it read, `KV` for caches or
    `rows` for neither; `libraries` maps a library to the SHA-256 of its bytes. `logits_sha256`
    chains the logits of every pick: h ← SHA-256(h ‖ logits as little-endian f32), from 32 zero
    bytes.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: str
    seed: int | None
    timings: Timings
    labels: Mapping[str, tuple[str, ...]]
    libraries: Mapping[str, str]
    logits_sha256: str | None = None
