"""From a name or a path to a running engine."""

from pathlib import Path
from time import perf_counter

from muser.devices import LastWords, Limits, open_device, require_device
from muser.engine.engine import Engine
from muser.errors import LimitError, ModelError
from muser.formats import GgufFile
from muser.graph import Graph
from muser.models import build
from muser.text import ChatTemplate, Tokenizer
from muser.weights import Weights, obtain

DEFAULT_CONTEXT = 4096


def load(
    model: str | Path,
    *,
    device: str = "cpu",
    threads: int | None = None,
    context: int | None = None,
    chunk: int | None = None,
    expects_chat: bool = False,
    last_words: LastWords | None = None,
) -> Engine:
    """Open a GGUF file by path, or a catalogued model by name (fetched if it is not here).

    `context` is how many tokens prompt and answer may have together (default: the model's own
    length, at most 4,096); `chunk` the most prompt tokens a step takes; `threads` default to the
    cores this process may use. Neither chunk, threads nor device change a bit of the result.
    `expects_chat`: the process of the chat template starts now, beside the loading.

    The file stays mapped: it must not be written to while the engine lives. Each turn checks that
    it was not, before and after, and raises `FormatError`. A read of bytes that are gone ends the
    process with SIGBUS; with `last_words` it writes these to standard error and exits with the
    error's status instead. That takes the process's handler of SIGBUS.

    Raises `FormatError` and `ModelError` for a file that cannot be run, `DeviceError` for a
    missing compiler or device, `FetchError`, and `LimitError` for an impossible size.
    """
    start = perf_counter()
    require_device(device)
    path = obtain(model)
    file = GgufFile.open(path)
    graph = build(file.metadata, file.tensors)
    size = _context(graph, context)
    _check_chunk(chunk)
    tokenizer = Tokenizer.from_metadata(file.metadata)
    _check_vocabulary(path, tokenizer.size, graph.vocabulary)
    template = ChatTemplate.from_metadata(file.metadata, tokenizer)
    if template is not None and expects_chat:
        template.start()
    opened = open_device(device, threads=threads)
    limits = Limits(context=size, slots=1, chunk=min(chunk or opened.chunk, size))
    if last_words is not None:
        opened.guard(file, last_words)
    file.verify_unchanged()
    weights = Weights(file, graph, opened.memory, opened.looks)
    runner = opened.load(graph, weights, limits)
    took = perf_counter() - start
    return Engine(path, graph, tokenizer, template, runner, took, file.verify_unchanged)


def _context(graph: Graph, context: int | None) -> int:
    size = min(graph.context, DEFAULT_CONTEXT) if context is None else context
    if not 1 <= size <= graph.context:
        raise LimitError(
            f"A context of {size} tokens is not possible: this model has {graph.context}.",
            f"Choose 1 to {graph.context}.",
        )
    return size


def _check_chunk(chunk: int | None) -> None:
    if chunk is not None and chunk < 1:
        raise LimitError(f"A chunk of {chunk} tokens is not possible.", "Choose 1 or more.")


def _check_vocabulary(path: Path, tokens: int, rows: int) -> None:
    if tokens != rows:
        raise ModelError(
            f"{path} has {tokens} tokens, but its embedding has {rows} rows.",
            "The file is inconsistent; convert the model again.",
        )
