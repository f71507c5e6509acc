"""The worker of flyweight's side; runs in any Python that has `flyweight`.

Requests are those of `muser.bench.side`; one slot, and ids alone.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter_ns
from typing import Any


class Worker:
    """One model at a time, on flyweight's CPU backend."""

    def __init__(self) -> None:
        import flyweight.v2 as v2  # type: ignore[import-not-found]

        self._v2: Any = v2
        self._model: Any = None
        self._runtime: Any = None
        self._settings: dict[str, Any] = {}
        v2.V2Model.select_backend("cpu")

    def do_identity(self) -> dict[str, Any]:
        native = Path(self._v2.__file__).parent / "_native"
        return {
            "engine": "flyweight-llm",
            "version": version("flyweight-llm"),
            "build": {"backend": self._v2.V2Model.active_backend()},
            "libraries": {path.name: sha256(path) for path in sorted(native.glob("*.so"))},
            "instruction_sets": ["chosen inside, not told"],
            "settings": self._settings,
        }

    def do_load(self, model: str, threads: int, context: int, slots: int) -> dict[str, Any]:
        if slots != 1:
            raise RuntimeError("this side has one slot")
        self._close()
        before, start = answering.memory(), perf_counter_ns()
        self._model = self._v2.V2Model(model)
        self._runtime = self._model.native_runtime(
            context_limit=context + 1, cpu_threads=threads, prefill_checkpoint_interval=0
        )
        self._runtime.prepare()
        took = perf_counter_ns() - start
        self._settings = {"threads": threads, "context": context, "slots": slots, "kv": "f16"}
        return {"ns": took, "before": before, "after": answering.memory()}

    def do_decode(
        self, prompts: list[list[int]], fed: list[list[int]], margins: bool
    ) -> dict[str, Any]:
        [prompt], [tokens] = prompts, fed
        self._runtime.reset()
        if prompt:
            self._start(prompt)
        start = perf_counter_ns()
        ids = [self._runtime.decode(token) for token in tokens]
        return {"ids": ids, "ns": perf_counter_ns() - start}

    def do_prefill(self, ids: list[int], margins: bool) -> dict[str, Any]:
        self._runtime.reset()
        start = perf_counter_ns()
        chosen = self._start(ids)
        return {"ids": chosen, "ns": perf_counter_ns() - start}

    def do_memory(self) -> dict[str, int]:
        found: dict[str, int] = answering.memory()
        return found

    def _start(self, ids: Sequence[int]) -> list[int]:
        """A prompt into the empty cache, and the choice after it, which is not fed."""
        chosen: list[int] = []
        self._runtime.generate(list(ids), 1, chosen.append)
        return chosen

    def _close(self) -> None:
        for opened in (self._runtime, self._model):
            if opened is not None:
                opened.close()
        self._runtime = self._model = None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _answering() -> Any:
    """The other end of the pipe, by path: this interpreter may not have Muser."""
    path = Path(__file__).resolve().parents[1] / "answering.py"
    spec = importlib.util.spec_from_file_location("answering", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


answering = _answering()

if __name__ == "__main__":
    answering.answer_all(Worker())
