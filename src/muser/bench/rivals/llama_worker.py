"""The worker of both llama.cpp sides; runs in any Python with NumPy, Muser need not be there.

    llama_worker.py BATCH LAYERS library SHIM LIBLLAMA   through the compiled shim, see llama.c
    llama_worker.py BATCH LAYERS bindings                through the package `llama_cpp`

BATCH is n_batch and n_ubatch, LAYERS n_gpu_layers; `-` leaves those to llama.cpp. Requests are
those of `muser.bench.side`.
"""

import ctypes
import hashlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

THEIR_CHOICE = -(1 << 31)  # n_gpu_layers is left to llama.cpp
KEPT = ("buffer size", "lash", "using device", "offloaded")  # what is kept of its log, as llama.c
ALIGNMENT = 8  # bytes at the end of a structure that may be padding
FAILURES = {0: "cannot load this model", -1: "cannot make a context", -2: "starts no threads"}
Chosen = tuple[list[list[int]], list[list[float]]]  # ids and margins, [steps][slots]


class Engine(Protocol):
    """llama.cpp with one model and one context."""

    def described(self) -> dict[str, Any]:
        """`version`, `build`, `libraries`, `instruction_sets`."""

    def notes(self) -> list[str]:
        """What llama.cpp said of its buffers and its attention while it opened the model."""

    def open(self, model: str, threads: int, context: int, slots: int) -> int:
        """The vocabulary's size, or a key of `FAILURES`."""

    def layers(self) -> int:
        """n_gpu_layers of the model that is open; negative: all."""

    def clear(self) -> None:
        """Empty the cache."""

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        wanted: Sequence[bool],
    ) -> int:
        """llama_decode's status."""

    def decode(
        self, steps: Sequence[Sequence[int]], starts: Sequence[int], margins: bool
    ) -> Chosen:
        """One token a slot and step, from positions `starts` on, and the choice after each."""

    def row(self, token: int) -> Any:
        """The address of the logits of one of the last step's tokens."""

    def close(self) -> None:
        """Free all of it."""


class Library:
    """A libllama behind the shim that was compiled against its headers."""

    def __init__(self, batch: int, layers: int | None, shim: str, library: str) -> None:
        self._batch, self._layers = batch, THEIR_CHOICE if layers is None else layers
        self._library = Path(library)
        self._shim = ctypes.CDLL(shim)
        self._shim.peer_system.restype = ctypes.c_char_p
        self._shim.peer_notes.restype = ctypes.c_char_p
        self._shim.peer_logits.restype = ctypes.c_void_p
        self._check_sizes()

    def described(self) -> dict[str, Any]:
        file = self._library.parent / "build.json"  # by bench/peers/llama_build.py
        build = json.loads(file.read_text()) if file.is_file() else {}
        system = self._shim.peer_system().decode()
        return {
            "version": build.pop("build", "unknown"),
            "build": {**build, "library": self._library.name},
            "libraries": {**told.card_libraries(), **told.hashes(self._library.parent)},
            "instruction_sets": told.instruction_sets(system),
        }

    def notes(self) -> list[str]:
        return [line.strip() for line in self._shim.peer_notes().decode().splitlines()]

    def open(self, model: str, threads: int, context: int, slots: int) -> int:
        chosen = (threads, context, slots, self._batch, self._layers)
        return int(self._shim.peer_open(model.encode(), *chosen))

    def layers(self) -> int:
        return int(self._shim.peer_layers())

    def clear(self) -> None:
        self._shim.peer_clear()

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        wanted: Sequence[bool],
    ) -> int:
        ints = ctypes.c_int32 * len(tokens)
        flags = (ctypes.c_int8 * len(tokens))(*wanted)
        return int(
            self._shim.peer_step(len(tokens), ints(*tokens), ints(*positions), ints(*slots), flags)
        )

    def decode(
        self, steps: Sequence[Sequence[int]], starts: Sequence[int], margins: bool
    ) -> Chosen:
        slots, count = len(starts), len(starts) * len(steps)
        flat = (ctypes.c_int32 * count)(*(token for step in steps for token in step))
        ids, shown = (ctypes.c_int32 * count)(), (ctypes.c_float * count)()
        status = self._shim.peer_decode(
            len(steps),
            slots,
            flat,
            (ctypes.c_int32 * slots)(*starts),
            ids,
            shown if margins else None,
        )
        require(status, slots)
        return rows_of(ids, slots), rows_of(shown, slots)

    def row(self, token: int) -> int:
        return int(self._shim.peer_logits(token))

    def close(self) -> None:
        self._shim.peer_close()

    def _check_sizes(self) -> None:
        sizes = (ctypes.c_int64 * 4)()
        self._shim.peer_sizes(sizes)
        for declared, written in zip(sizes[:2], sizes[2:], strict=True):
            if written and not declared - ALIGNMENT < written <= declared:
                raise SystemExit(
                    f"{self._library} writes structures of {written} bytes where the headers"
                    f" beside it say {declared}: they belong to another build."
                )


class Bindings:
    """The low-level functions of llama-cpp-python."""

    def __init__(self, batch: int, layers: int | None) -> None:
        import llama_cpp  # type: ignore[import-not-found]

        self._size, self._wanted_layers, self._layers = batch, layers, 0
        self._c: Any = llama_cpp
        self._model: Any = None
        self._context: Any = None
        self._batch: Any = None
        self._width = 0
        self._notes: list[str] = []
        self._log = llama_cpp.llama_log_callback(self._note)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def described(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {
            "version": f"llama-cpp-python {version('llama-cpp-python')}",
            "build": {"python": sys.version.split()[0]},
            "libraries": {
                **told.card_libraries(),
                **told.hashes(Path(self._c.__file__).parent / "lib"),
            },
            "instruction_sets": told.instruction_sets(self._c.llama_print_system_info().decode()),
        }

    def notes(self) -> list[str]:
        return self._notes

    def open(self, model: str, threads: int, context: int, slots: int) -> int:
        c = self._c
        self.close()
        loading = c.llama_model_default_params()
        if self._wanted_layers is not None:
            loading.n_gpu_layers = self._wanted_layers
        self._layers = int(loading.n_gpu_layers)
        self._model = c.llama_model_load_from_file(model.encode(), loading)
        if not self._model:
            return 0
        wanted = c.llama_context_default_params()
        wanted.n_ctx, wanted.n_seq_max = context * slots, slots
        wanted.n_batch = wanted.n_ubatch = self._size
        wanted.n_threads = wanted.n_threads_batch = threads
        wanted.no_perf = True
        self._context = c.llama_init_from_model(self._model, wanted)
        if not self._context:
            return -1
        self._batch = c.llama_batch_init(self._size, 0, 1)
        self._width = int(c.llama_vocab_n_tokens(c.llama_model_get_vocab(self._model)))
        return self._width

    def layers(self) -> int:
        return self._layers

    def clear(self) -> None:
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        wanted: Sequence[bool],
    ) -> int:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, positions[at]
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, slots[at]
            batch.logits[at] = wanted[at]
        return int(self._c.llama_decode(self._context, batch))

    def decode(
        self, steps: Sequence[Sequence[int]], starts: Sequence[int], margins: bool
    ) -> Chosen:
        every = list(range(len(starts)))
        ids, shown = [], []
        for number, tokens in enumerate(steps):
            positions = [start + number for start in starts]
            require(self.step(tokens, positions, every, [True] * len(every)), len(every))
            rows = [table(self.row(slot), self._width) for slot in every]
            ids.append([int(row.argmax()) for row in rows])
            if margins:
                shown.append([margin(row) for row in rows])
        return ids, shown

    def row(self, token: int) -> Any:
        return self._c.llama_get_logits_ith(self._context, token)

    def close(self) -> None:
        if self._batch is not None:
            self._c.llama_batch_free(self._batch)
        if self._context:
            self._c.llama_free(self._context)
        if self._model:
            self._c.llama_model_free(self._model)
        self._model = self._context = self._batch = None
        self._notes.clear()

    def _note(self, _level: int, text: bytes, _data: Any) -> None:
        line = text.decode(errors="replace").strip()
        sys.stderr.write(line + "\n")
        if any(word in line for word in KEPT):
            self._notes.append(line)


class Worker:
    """Answers the requests with either engine, which takes at most `batch` tokens at once."""

    def __init__(self, engine: Engine, batch: int) -> None:
        self._engine, self._batch = engine, batch
        self._width = 0
        self._settings: dict[str, Any] = {}

    def do_identity(self) -> dict[str, Any]:
        said = self._engine.notes()
        settings = {**self._settings, **told.on_cards(said), "said": said}
        return {"engine": "llama.cpp", **self._engine.described(), "settings": settings}

    def do_load(self, model: str, threads: int, context: int, slots: int) -> dict[str, Any]:
        before, start = answering.memory(), perf_counter_ns()
        width = self._engine.open(model, threads, context, slots)
        took = perf_counter_ns() - start
        if width in FAILURES:
            raise RuntimeError(f"llama.cpp {FAILURES[width]}: {model}")
        self._width = width
        self._settings = {
            "threads": threads,
            "context": context,
            "slots": slots,
            "kv": "f16",
            "flash_attention": "auto",
            "n_batch": self._batch,
            "n_ubatch": self._batch,
            "n_gpu_layers": self._engine.layers(),
            "mapped": True,
        }
        return {"ns": took, "before": before, "after": answering.memory()}

    def do_decode(
        self, prompts: list[list[int]], fed: list[list[int]], margins: bool
    ) -> dict[str, Any]:
        self._engine.clear()
        for slot, prompt in enumerate(prompts):
            self._fill(prompt, slot)
        starts = [len(prompt) for prompt in prompts]
        steps = [list(tokens) for tokens in zip(*fed, strict=True)]
        start = perf_counter_ns()
        ids, shown = self._engine.decode(steps, starts, margins)
        took = perf_counter_ns() - start
        rows = [self._row(slot) for slot in range(len(starts))]
        return {
            "ids": by_slot(ids),
            "ns": took,
            "logits_sha256": list(map(digest, rows)),
            "margins": by_slot(shown) if margins else None,
        }

    def do_prefill(self, ids: list[int], margins: bool) -> dict[str, Any]:
        self._engine.clear()
        start = perf_counter_ns()
        row = self._row(self._fill(ids, 0))
        chosen = int(row.argmax())
        took = perf_counter_ns() - start
        shown = [margin(row)] if margins else None
        return {"ids": [chosen], "ns": took, "logits_sha256": [digest(row)], "margins": shown}

    def do_memory(self) -> dict[str, int]:
        found: dict[str, int] = answering.memory()
        return found

    def _fill(self, ids: list[int], slot: int) -> int:
        """A prompt, with logits of its last token alone; that token's place in its batch."""
        last = 0
        for first in range(0, len(ids), self._batch):
            part = ids[first : first + self._batch]
            last = len(part) - 1
            positions = list(range(first, first + len(part)))
            wanted = [False] * last + [first + len(part) == len(ids)]
            status = self._engine.step(part, positions, [slot] * len(part), wanted)
            require(status, len(part))
        return last

    def _row(self, token: int) -> Any:
        return table(self._engine.row(token), self._width)


def table(address: Any, width: int) -> Any:
    """The floats at an address, as an array of them."""
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (width,))


def require(status: int, tokens: int) -> None:
    if status != 0:
        raise RuntimeError(f"llama_decode returned {status} for {tokens} tokens")


def rows_of(values: Any, width: int) -> list[list[Any]]:
    return [list(values[at : at + width]) for at in range(0, len(values), width)]


def by_slot(steps: list[list[Any]]) -> list[Any]:
    """A list of steps' lists as one list, slot after slot."""
    return [value for slot in zip(*steps, strict=True) for value in slot]


def margin(row: Any) -> float:
    """First minus second logit."""
    two = np.partition(row, -2)[-2:]
    return float(two[1] - two[0])


def digest(row: Any) -> str:
    return hashlib.sha256(row.astype("<f4").tobytes()).hexdigest()


def _by_path(path: Path) -> Any:
    """A module of Muser's, by path: this interpreter may not have Muser."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HERE = Path(__file__).resolve().parent
answering = _by_path(HERE.parent / "answering.py")  # the other end of the pipe
told = _by_path(HERE / "llama_told.py")


def main(batch: str, layers: str, kind: str, *paths: str) -> None:
    chosen = (int(batch), None if layers == "-" else int(layers))
    engine: Engine = Library(*chosen, *paths) if kind == "library" else Bindings(*chosen)
    answering.answer_all(Worker(engine, int(batch)))
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
