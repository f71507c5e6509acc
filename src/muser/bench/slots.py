"""A loaded model as a comparison uses it: a few sequences, fed token by token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muser.devices import Limits, Runner, Step, open_device
from muser.devices.feeding import fill, stretch
from muser.engine import Engine, load
from muser.formats import GgufFile
from muser.models import build
from muser.weights import Weights

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class Slots(Protocol):
    """What decoding needs of a loaded model."""

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """The pipelines that were played."""

    @property
    def libraries(self) -> Mapping[str, str]:
        """Library name to SHA-256."""

    def start(self, prompts: Sequence[Sequence[int]]) -> F32:
        """Empty every slot and put its prompt into it: the last row of each that is not empty,
        `[≤ slots, vocabulary]`.
        """

    def step(self, tokens: Sequence[int]) -> F32:
        """One token into every slot: logits `[slots, vocabulary]`."""

    def choose(self, tokens: Sequence[int]) -> I32:
        """The same step; the first token in token order of each slot, int32 `[slots]`."""

    def close(self) -> None:
        """Give the model back."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is run: a device's name, and the rows of a step (None: the device's own)."""

    device: str = "cpu"
    chunk: int | None = None


def open_slots(model: Path, place: Place, *, threads: int, context: int, slots: int) -> Slots:
    """One slot is what `muser.load` gives; more are a runner of the device."""
    device = open_device(place.device, threads=threads)
    chunk = min(place.chunk or device.chunk, context)
    if slots == 1:
        engine = load(model, device=place.device, threads=threads, context=context, chunk=chunk)
        return OneSlot(engine, chunk)
    file = GgufFile.open(model)
    graph = build(file.metadata, file.tensors)
    chunk = max(chunk, slots)  # a step takes a row of every slot, in however short a context
    limits = Limits(context=context, slots=slots, chunk=chunk)
    return ManySlots(device.load(graph, Weights(file, graph, device.memory, device.looks), limits))


class OneSlot:
    """The engine's own slot, in one turn after another."""

    def __init__(self, engine: Engine, chunk: int) -> None:
        self._engine, self._chunk = engine, chunk
        self._turn = engine.turn()
        self._slot = self._turn.__enter__()

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        return self._engine.labels

    @property
    def libraries(self) -> Mapping[str, str]:
        return self._engine.libraries

    def start(self, prompts: Sequence[Sequence[int]]) -> F32:
        [prompt] = prompts
        self._slot.clear()
        if not prompt:
            return np.empty((0, self._engine.graph.vocabulary), np.float32)
        return self._slot.append(prompt, [len(prompt) - 1], self._chunk)

    def step(self, tokens: Sequence[int]) -> F32:
        return self._slot.append(tokens, [0], self._chunk)

    def choose(self, tokens: Sequence[int]) -> I32:
        return np.array([self._slot.choose(tokens, self._chunk)], np.int32)

    def close(self) -> None:
        self._turn.__exit__(None, None, None)
        self._engine.close()


class ManySlots:
    """The slots of a runner, all in every step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lengths = np.zeros(runner.limits.slots, np.int32)

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        return self._runner.labels

    @property
    def libraries(self) -> Mapping[str, str]:
        return self._runner.libraries

    def start(self, prompts: Sequence[Sequence[int]]) -> F32:
        self._lengths[:] = 0
        rows = [self._fill(at, prompt) for at, prompt in enumerate(prompts) if prompt]
        return np.concatenate(rows) if rows else np.empty((0, 0), np.float32)

    def step(self, tokens: Sequence[int]) -> F32:
        logits = self._runner.forward(self._every(tokens))
        self._lengths[: len(tokens)] += 1
        return logits

    def choose(self, tokens: Sequence[int]) -> I32:
        chosen = self._runner.choose(self._every(tokens))
        self._lengths[: len(tokens)] += 1
        return chosen

    def _every(self, tokens: Sequence[int]) -> Step:
        """One token into every slot."""
        count = len(tokens)
        every = np.arange(count, dtype=np.int32)
        return Step(np.asarray(tokens, np.int32), self._lengths[:count].copy(), every, every)

    def close(self) -> None:
        self._runner.close()

    def _fill(self, slot: int, prompt: Sequence[int]) -> F32:
        """The last row of logits of a prompt that is not empty."""
        chunk = self._runner.limits.chunk
        last = (len(prompt) - 1) // chunk * chunk  # where the last step begins
        fill(self._runner, prompt[:last], slot)
        part = prompt[last:]
        self._lengths[slot] = len(prompt)
        return self._runner.forward(stretch(part, last, slot, [len(part) - 1]))
