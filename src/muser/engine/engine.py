"""The engine: one loaded model, asked for text, ids or logits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import index
from pathlib import Path
from threading import RLock
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from muser.devices import Runner
from muser.engine.records import Generation
from muser.engine.sampling import Sampler, Sampling
from muser.engine.slot import Slot
from muser.engine.stream import Loaded, Request, Stream
from muser.errors import LimitError, UsageError
from muser.graph import Graph
from muser.text import ChatTemplate, Tokenizer


class Engine:
    """A model on a device, made by `muser.load`.

    One thread generates at a time; `cancel` may come from any. Use it as a context manager, or
    call `close`.
    """

    def __init__(
        self,
        path: Path,
        graph: Graph,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        runner: Runner,
        load_s: float,
        verify_unchanged: Callable[[], None],
    ) -> None:
        """`verify_unchanged` raises if the weights are no longer those that were loaded."""
        self.path = path
        self.graph = graph
        self.tokenizer = tokenizer
        self.template = template
        self._runner = runner
        self._load_s = load_s
        self._verify_unchanged = verify_unchanged
        self._slot = Slot(runner, 0)
        self._state = RLock()  # a signal handler may cancel on the thread that holds it
        self._busy = False

    def __repr__(self) -> str:
        return f"<Engine {self.path.name}: {self.graph.architecture}, context {self.context}>"

    @property
    def context(self) -> int:
        """How many tokens prompt and answer may have together."""
        return self._runner.limits.context

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """What the last turn played: tensor type (`KV`, `rows`) to the labels of its pipelines."""
        return self._runner.labels

    @property
    def libraries(self) -> Mapping[str, str]:
        """Library name to the SHA-256 of its bytes."""
        return self._runner.libraries

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] = (),
        system: str | None = None,
        raw: bool = True,
        hash_logits: bool = False,
    ) -> Generation:
        """The whole answer; parameters and errors as for `stream`."""
        stream = self.stream(
            prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            system=system,
            raw=raw,
            hash_logits=hash_logits,
        )
        for _ in stream:
            pass
        assert stream.generation is not None
        return stream.generation

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: str | Sequence[str] = (),
        system: str | None = None,
        raw: bool = True,
        hash_logits: bool = False,
    ) -> Stream:
        """Pieces as they are made; `Stream.generation` is the record at the end.

        A text prompt is continued as it stands if `raw`, else put as a user's message into the
        model's chat template, after `system` if that is given. `max_tokens` None: until the model
        stops or the context is full. Greedy unless `sampling` says otherwise. The text ends before
        any of the `stop` texts. `hash_logits`: the record has `logits_sha256`.

        Raises `UsageError` for a request that makes no sense and `LimitError` for one that does
        not fit, both before any work; `ArithmeticFault` when the model leaves the finite numbers;
        `FormatError` when its file was written to, before any work or in place of the record.
        """
        ids = self._prompt_ids(prompt, system, raw)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        request = Request(ids, self._room(len(ids), max_tokens), stops, hash_logits)
        sampler = self._sampler(sampling or Sampling())
        loaded = Loaded(
            tokenizer=self.tokenizer,
            runner=self._runner,
            chunk=self._runner.limits.chunk,
            load_s=self._load_s,
            turn=self.turn,
        )
        return Stream(request, sampler, loaded)

    def logits(self, ids: Sequence[int], *, chunk: int | None = None) -> NDArray[np.float32]:
        """Teacher-forced logits after every token of `ids`: f32 `[len(ids), vocabulary]`.

        `chunk` tokens go through at a time (at most, and by default, the runner's chunk).
        """
        limit = self._runner.limits.chunk
        if chunk is not None and not 1 <= chunk <= limit:
            raise UsageError(f"chunk is {chunk}.", f"Choose 1 to {limit}.")
        ids = _whole(ids)
        self._check_ids(ids)
        self._room(len(ids), 0)
        with self.turn() as slot:
            return slot.append(ids, range(len(ids)), chunk or limit)

    def cancel(self) -> None:
        """Stop the running generation before its next tape entry; nothing runs: no effect."""
        with self._state:
            if self._busy:
                self._runner.cancel()

    def check(self) -> None:
        """Assert what must hold of an idle engine: nothing runs, and the slot fits its cache."""
        with self._state:
            assert not self._busy
            assert len(self._slot.ids) <= self.context

    def close(self) -> None:
        """Give back threads and memory, and end the template's process; not while generating."""
        self._runner.close()
        if self.template is not None:
            self.template.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def turn(self) -> Iterator[Slot]:
        """The slot, empty, for one caller at a time; a cancel belongs to the turn it meets.

        What a turn made counts only if the weights were the same all the while.
        """
        self._verify_unchanged()
        with self._state:
            if self._busy:
                raise UsageError(
                    "This engine is already generating.",
                    "Finish or close the other stream first, or load a second engine.",
                )
            self._busy = True
            self._runner.resume()
        try:
            self._slot.clear()
            yield self._slot
            self._verify_unchanged()
        finally:
            with self._state:
                self._busy = False

    def _sampler(self, sampling: Sampling) -> Sampler:
        breakers = None
        if sampling.uses_dry:
            from muser.engine.sampling.history import breaker_tokens  # few need the stages

            pieces = map(self.tokenizer.token_bytes, range(self.tokenizer.size))
            encode = partial(self.tokenizer.encode, bos=False)
            breakers = breaker_tokens(sampling.dry_breakers, pieces, encode)
        return Sampler(sampling, self.tokenizer.stop_ids, breakers)

    def _prompt_ids(
        self, prompt: str | Sequence[int], system: str | None, raw: bool
    ) -> tuple[int, ...]:
        if isinstance(prompt, bytes | bytearray):
            raise UsageError("The prompt is bytes.", "Give a str, or a sequence of token ids.")
        ids = self._encode(prompt, system, raw) if isinstance(prompt, str) else _whole(prompt)
        if not ids:
            raise UsageError("The prompt has no tokens.", "Give at least one word.")
        self._check_ids(ids)
        return tuple(ids)

    def _encode(self, prompt: str, system: str | None, raw: bool) -> list[int]:
        if raw:
            if system is not None:
                raise UsageError(
                    "A system text needs the chat template.", "Pass raw=False, or no system."
                )
            return self.tokenizer.encode(prompt)
        if self.template is None:
            raise UsageError(
                f"{self.path.name} has no chat template.", "Pass raw=True and no system."
            )
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": prompt})
        text = self.template.render(messages)
        return self.tokenizer.encode(text, special=True)

    def _check_ids(self, ids: Sequence[int]) -> None:
        size = self.graph.vocabulary
        for token in ids:
            if not 0 <= token < size:
                raise UsageError(
                    f"Token id {token} is not in the vocabulary.", f"Ids run from 0 to {size - 1}."
                )

    def _room(self, prompt: int, max_tokens: int | None) -> int:
        """How many tokens may follow: the last one is never run, so it needs no position."""
        if max_tokens is not None and max_tokens < 0:
            raise UsageError(f"max_tokens is {max_tokens}.", "Choose 0 or more.")
        room = self.context - prompt + 1
        if room < 1:
            raise LimitError(
                f"A prompt of length {prompt} does not fit a context of {self.context}.",
                "Shorten the prompt or ask for a larger context (--ctx-size).",
            )
        if max_tokens is not None and max_tokens > room:
            raise LimitError(
                f"A prompt of length {prompt} and an answer of {max_tokens} need"
                f" {prompt + max_tokens - 1} positions, the context has {self.context}.",
                f"Ask for at most {room} or for a larger context (--ctx-size).",
            )
        return room if max_tokens is None else max_tokens


def _whole(ids: Sequence[int]) -> list[int]:
    """Token ids as Python's own integers; NumPy's are welcome, truth values are a mistake."""
    if any(isinstance(token, bool) for token in ids):
        raise UsageError("A token id is True or False.", "Give whole numbers.")
    return list(map(index, ids))
