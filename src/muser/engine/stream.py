"""The generation loop: prefill, pick, emit, step."""

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from muser.devices import Runner
from muser.engine.records import Generation, Piece, Timings
from muser.engine.sampling import Sampler
from muser.engine.slot import Slot
from muser.errors import Cancelled
from muser.text import StopStrings, StreamDecoder, Tokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a stream needs of its engine; it works inside `turn`, alone on an empty slot."""

    tokenizer: Tokenizer
    runner: Runner
    chunk: int
    load_s: float
    turn: Callable[[], AbstractContextManager[Slot]]


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request: it fits the context before work starts."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...]
    hash_logits: bool


class LogitsChain:
    """h ← SHA-256(h ‖ logits as little-endian f32), from 32 zero bytes."""

    def __init__(self) -> None:
        self._state = bytes(32)

    def extend(self, logits: NDArray[np.float32]) -> None:
        words = np.ascontiguousarray(logits, "<f4").tobytes()
        self._state = hashlib.sha256(self._state + words).digest()

    def hexdigest(self) -> str:
        return self._state.hex()


class Stream(Iterator[Piece]):
    """The pieces of one answer; `generation` is the record once the last piece was taken."""

    def __init__(self, request: Request, sampler: Sampler, loaded: Loaded) -> None:
        self.request = request
        self.generation: Generation | None = None
        self._sampler = sampler
        self._loaded = loaded
        self._history = list(request.prompt_ids)
        self._text: list[str] = []
        self._chain = LogitsChain()
        self._prefill_s = self._decode_s = 0.0
        self._pieces = self._generate()

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Stop without a record; a stream that was read to its end needs no closing."""
        self._pieces.close()

    @property
    def ids(self) -> list[int]:
        """The tokens picked so far."""
        return self._history[len(self.request.prompt_ids) :]

    def _generate(self) -> Generator[Piece]:
        with self._loaded.turn() as slot:
            record = yield from self._answer(slot)
        self.generation = record

    def _answer(self, slot: Slot) -> Generator[Piece, None, Generation]:
        decoder, stops = StreamDecoder(self._loaded.tokenizer), StopStrings(self.request.stop)
        reason = "length"
        try:
            for token in self._picks(slot):
                if token in self._loaded.tokenizer.stop_ids:
                    reason = "stop"
                    break
                yield self._piece(stops.feed(decoder.feed(token)), token)
                if stops.hit:
                    reason = "stop"
                    break
        except Cancelled:
            reason = "cancelled"
        rest = "" if stops.hit else stops.feed(decoder.finish()) + stops.finish()
        if rest:
            yield self._piece(rest, self._history[-1])
        return self._record("stop" if stops.hit else reason)

    def _piece(self, text: str, token: int) -> Piece:
        self._text.append(text)
        return Piece(text, token)

    def _picks(self, slot: Slot) -> Iterator[int]:
        """Token after token; the last one is not run through the model."""
        ids: Sequence[int] = self.request.prompt_ids
        for step in range(self.request.max_tokens):
            start = perf_counter()
            token = self._pick(slot, ids)
            took = perf_counter() - start
            if step == 0:
                self._prefill_s = took
            else:
                self._decode_s += took
            yield token
            ids = [token]

    def _pick(self, slot: Slot, ids: Sequence[int]) -> int:
        chunk = self._loaded.chunk
        if self._sampler.takes_first and not self.request.hash_logits:
            token = slot.choose(ids, chunk)
        else:
            logits = slot.append(ids, [len(ids) - 1], chunk)[0]
            if self.request.hash_logits:
                self._chain.extend(logits)
            token = self._sampler.pick(logits, self._history)
        self._history.append(token)
        return token

    def _record(self, reason: str) -> Generation:
        return Generation(
            prompt_ids=self.request.prompt_ids,
            ids=tuple(self.ids),
            text="".join(self._text),
            finish_reason=reason,
            seed=None if self._sampler.sampling.greedy else self._sampler.seed,
            timings=Timings(
                load_s=self._loaded.load_s,
                prefill_s=self._prefill_s,
                decode_s=self._decode_s,
                prompt_tokens=len(self.request.prompt_ids),
                tokens=len(self.ids),
            ),
            labels=self._loaded.runner.labels,
            libraries=self._loaded.runner.libraries,
            logits_sha256=self._chain.hexdigest() if self.request.hash_logits else None,
        )
