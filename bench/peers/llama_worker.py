"""Score token ids with llama.cpp: a process that runs inside llama-cpp-python's environment.

Requests are JSON lines on standard input, answers JSON lines on standard output; an answer with
`bytes` is followed by that many raw bytes. It imports nothing but `llama_cpp`, NumPy and the
standard library, and uses the low-level C API alone.

    {"do": "build"}                                   -> version, instruction sets, library hashes
    {"do": "open", "model", "context", "threads", "flash"}    -> {"vocabulary"}
    {"do": "tokenize", "text"}                        -> {"ids"}
    {"do": "logits", "ids", "first"}                  -> {"rows", "bytes"}, then f32 [rows, vocab]
    {"do": "nodes", "ids", "names"}                   -> {"nodes": [[name, shape]...], "bytes"}
"""

import ctypes
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import llama_cpp
import numpy as np

FLASH = {"auto": -1, "off": 0, "on": 1}
BLOCK_ROWS = 32
GGML_MAX_DIMS = 4
TENSOR_NE = 16  # offset of i64 ne[4] in ggml_tensor
TENSOR_NAME = 256  # offset of char name[64]
TYPE_F32 = 0


class Worker:
    """One model and one context at a time."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.model: Any = None
        self.context: Any = None
        self.vocab: Any = None
        self.width = 0
        self.watched: list[tuple[str, np.ndarray]] | None = None
        self.names: frozenset[str] = frozenset()
        llama_cpp.llama_backend_init()

    def answer(self, request: dict[str, Any]) -> None:
        getattr(self, f"do_{request.pop('do')}")(**request)

    def say(self, **fields: Any) -> None:
        self.out.write(json.dumps(fields).encode() + b"\n")
        self.out.flush()

    def do_build(self) -> None:
        folder = Path(llama_cpp.__file__).parent / "lib"
        libraries = [path for path in folder.iterdir() if path.suffix in (".so", ".dylib", ".dll")]
        self.say(
            package=f"llama-cpp-python=={version('llama-cpp-python')}",
            instruction_sets=llama_cpp.llama_print_system_info().decode().strip(" |"),
            libraries={path.name: _sha256(path) for path in sorted(libraries)},
        )

    def do_open(self, model: str, context: int, threads: int, flash: str) -> None:
        self.close()
        self.model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {model}.")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.width = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.context = llama_cpp.llama_init_from_model(
            self.model, self.parameters(context, threads, flash)
        )
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context of {context} tokens for {model}.")
        self.say(vocabulary=self.width)

    def parameters(self, context: int, threads: int, flash: str) -> Any:
        chosen = llama_cpp.llama_context_default_params()
        chosen.n_ctx = chosen.n_batch = context
        chosen.n_ubatch = min(512, context)
        chosen.n_threads = chosen.n_threads_batch = threads
        chosen.flash_attn_type = FLASH[flash]
        self.callback = llama_cpp.ggml_backend_sched_eval_callback(self.watch)
        chosen.cb_eval = self.callback
        return chosen

    def do_tokenize(self, text: str) -> None:
        raw = text.encode()
        room = len(raw) + 8
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), ids, room, True, False)
        self.say(ids=list(ids[:count]))

    def do_logits(self, ids: Sequence[int], first: int) -> None:
        self.decode(ids, first)
        rows = len(ids) - first
        self.say(rows=rows, bytes=rows * self.width * 4)
        logits = llama_cpp.llama_get_logits(self.context)
        table = np.ctypeslib.as_array(logits, shape=(rows, self.width))
        for start in range(0, rows, BLOCK_ROWS):
            self.out.write(table[start : start + BLOCK_ROWS].tobytes())
        self.out.flush()

    def do_nodes(self, ids: Sequence[int], names: Sequence[str]) -> None:
        self.names, self.watched = frozenset(names), []
        self.decode(ids, 0)
        found, self.watched = self.watched, None
        size = sum(values.nbytes for _, values in found)
        self.say(nodes=[[name, values.shape] for name, values in found], bytes=size)
        for _, values in found:
            self.out.write(values.tobytes())
        self.out.flush()

    def watch(self, tensor: int, asked: bool, _: Any) -> bool:
        """llama.cpp's eval callback: asked first whether a node is wanted, then given it."""
        if self.watched is None:
            return not asked
        name = ctypes.string_at(tensor + TENSOR_NAME).decode()
        wanted = name in self.names or not self.names
        if not asked and wanted and ctypes.c_int.from_address(tensor).value == TYPE_F32:
            self.watched.append((name, _read(tensor)))
        return wanted or not asked

    def decode(self, ids: Sequence[int], first: int) -> None:
        """Run `ids` from an empty cache in one batch, with outputs from index `first` on."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for index, token in enumerate(ids):
            batch.token[index], batch.pos[index] = token, index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = index >= first
        status = llama_cpp.llama_decode(self.context, batch)
        llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise SystemExit(f"llama_decode returned {status} for {len(ids)} tokens.")

    def close(self) -> None:
        if self.context:
            llama_cpp.llama_free(self.context)
            self.context = None
        if self.model:
            llama_cpp.llama_model_free(self.model)
            self.model = None


def _read(tensor: int) -> np.ndarray:
    """A copy of a tensor's f32 values, outermost dimension first, through ggml's own accessor."""
    shape = (ctypes.c_int64 * GGML_MAX_DIMS).from_address(tensor + TENSOR_NE)[::-1]
    values = np.empty(shape, np.float32)
    get = _ggml_base().ggml_backend_tensor_get
    get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    get.restype = None
    get(tensor, values.ctypes.data, 0, values.nbytes)
    return values


def _ggml_base() -> ctypes.CDLL:
    folder = Path(llama_cpp.__file__).parent / "lib"
    return ctypes.CDLL(str(next(folder.glob("libggml-base.*"))))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Answer until the input ends; what C prints on standard output goes to the error stream."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = Worker(out)
    for line in sys.stdin:
        worker.answer(json.loads(line))
    worker.close()


if __name__ == "__main__":
    main()
