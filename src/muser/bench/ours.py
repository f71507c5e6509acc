"""Muser as a side: `python -m muser.bench.ours` is its worker."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from muser.bench.answering import answer_all, memory
from muser.bench.process import WorkerSide

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from muser.bench.slots import Slots


CUDA = "cuda"
OTHER_CHUNK = 16  # rows of a step of a reference on the measured card: other kernels serve them


class MuserSide(WorkerSide):
    """This package in a process of its own; `isa` as `MUSER_ISA` (None: as it is set).

    `device` and `chunk` (rows of a step; None: the device's own) say where a model is run.
    """

    def __init__(
        self,
        *,
        isa: str | None = None,
        device: str = "cpu",
        chunk: int | None = None,
        name: str = "muser",
    ) -> None:
        environment = {} if isa is None else {"MUSER_ISA": isa}
        where = () if chunk is None else (str(chunk),)
        command = (sys.executable, "-m", "muser.bench.ours", device, *where)
        super().__init__(name, command, environment)

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[tuple[int, ...], str]:
        """`count` greedy ids after a prompt, ends of text included, and the digest of the last
        row of logits: what timed runs have to equal.
        """
        said = self.ask(do="greedy", prompt=list(prompt), count=count)
        return tuple(said["ids"]), said["logits_sha256"][0]


def reference_side(how: str) -> MuserSide:
    """What computes a reference: an instruction set of the CPU, or `cuda` in small steps."""
    if how == CUDA:
        return MuserSide(device=CUDA, chunk=OTHER_CHUNK, name="the reference")
    return MuserSide(isa=how, name="the reference")


class Worker:
    """One model at a time; the requests are those of `muser.bench.side`, and `greedy`."""

    def __init__(self, device: str = "cpu", chunk: str | None = None) -> None:
        self._device, self._chunk = device, None if chunk is None else int(chunk)
        self._slots: Slots | None = None
        self._settings: dict[str, Any] = {}

    def do_identity(self) -> dict[str, Any]:
        from muser.bench.identity import build_identity, played_identity

        played = {} if self._slots is None else played_identity(self._slots)
        return {**build_identity(), **played, "settings": self._settings}

    def do_load(self, model: str, threads: int, context: int, slots: int) -> dict[str, Any]:
        from muser.bench.identity import first_card
        from muser.bench.slots import Place, open_slots

        self.close()
        before, start = memory(), perf_counter_ns()
        self._slots = open_slots(
            Path(model),
            Place(self._device, self._chunk),
            threads=threads,
            context=context,
            slots=slots,
        )
        took = perf_counter_ns() - start
        self._settings = {
            "device": self._device,
            "threads": threads,
            "context": context,
            "slots": slots,
            "kv": "f16",
        }
        if self._device == CUDA:
            self._settings["card"] = first_card()
        return {"ns": took, "before": before, "after": memory()}

    def do_decode(
        self, prompts: list[list[int]], fed: list[list[int]], margins: bool
    ) -> dict[str, Any]:
        slots, rows, shown = self._opened(), [], []
        slots.start(prompts)
        steps = list(zip(*fed, strict=True))
        start = perf_counter_ns()
        for tokens in steps[:-1]:
            if margins:
                logits = slots.step(tokens)
                rows.append(logits.argmax(axis=1))
                shown.append(_margins(logits))
            else:
                rows.append(slots.choose(tokens))
        logits = slots.step(steps[-1])
        rows.append(logits.argmax(axis=1))
        if margins:
            shown.append(_margins(logits))
        took = perf_counter_ns() - start
        return {
            "ids": _by_slot(rows),
            "ns": took,
            "logits_sha256": _digests(logits),
            "margins": _by_slot(shown) if margins else None,
        }

    def do_prefill(self, ids: list[int], margins: bool) -> dict[str, Any]:
        slots = self._opened()
        start = perf_counter_ns()
        logits = slots.start([ids])
        chosen = int(logits[0].argmax())
        took = perf_counter_ns() - start
        shown = _margins(logits).tolist() if margins else None
        return {"ids": [chosen], "ns": took, "logits_sha256": _digests(logits), "margins": shown}

    def do_greedy(self, prompt: list[int], count: int) -> dict[str, Any]:
        slots = self._opened()
        logits = slots.start([prompt])
        ids = [int(logits[0].argmax())]
        while len(ids) < count:
            logits = slots.step(ids[-1:])
            ids.append(int(logits[0].argmax()))
        return {"ids": ids, "logits_sha256": _digests(logits)}

    def do_memory(self) -> dict[str, int]:
        return memory()

    def close(self) -> None:
        """Give the model back, if there is one."""
        if self._slots is not None:
            self._slots.close()
            self._slots = None

    def _opened(self) -> "Slots":
        from muser.errors import UsageError

        if self._slots is None:
            raise UsageError("No model is loaded.", "Ask for `load` first.")
        return self._slots


def _by_slot(rows: Sequence[Any]) -> list[Any]:
    """A list of steps' `[slots]` arrays as one list, slot after slot."""
    import numpy as np

    values: list[Any] = np.stack(rows, axis=1).reshape(-1).tolist()
    return values


def _digests(logits: "NDArray[np.float32]") -> list[str]:
    return [hashlib.sha256(row.astype("<f4").tobytes()).hexdigest() for row in logits]


def _margins(logits: "NDArray[np.float32]") -> "NDArray[np.float32]":
    """First minus second logit of each row."""
    import numpy as np

    two = np.partition(logits, -2, axis=1)[:, -2:]
    return two[:, 1] - two[:, 0]


if __name__ == "__main__":
    answer_all(Worker(*sys.argv[1:]))
