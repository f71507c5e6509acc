"""Weights from the mapped file to the card: through pinned memory, several tensors at once.

A worker copies a piece of a tensor into pinned memory, queues its way to the card, and there a
kernel lays it out; meanwhile it fills its other piece.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muser.devices.cuda.card import Address, Card, Shape
from muser.devices.cuda.layouts import GROUP_BYTES, PAD, Layout
from muser.devices.cuda.memory import Memory, padded
from muser.devices.cuda.pinned import Pinned
from muser.devices.cuda.pipelines import Pipelines
from muser.devices.cuda.stepping import FAULT_BYTES, NO_FAULT, Faults
from muser.devices.cuda.structs import Place
from muser.errors import ModelError
from muser.formats import FLOATS
from muser.graph import Embed, Graph, HeadNorm, Project, RmsNorm
from muser.kv import round_up
from muser.weights import BoundTensor

PIECE = 16 << 20  # bytes of a file that are under way at once
WORKERS = 8
THREADS = 256  # of a block of the placing kernels


class WeightSource(Protocol):
    """What a runner asks of `muser.weights.Weights`."""

    def tensor(self, name: str) -> BoundTensor: ...
    def vector(self, name: str) -> NDArray[np.float32]: ...
    def read_into(self, name: str, first: int, target: NDArray[np.uint8]) -> None: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """A weight on the card. `raw`: the file's own rows, of float embeddings alone."""

    name: str
    layout: Layout
    codes: Address
    raw: Address


class DeviceWeights:
    """Everything of a file that a graph reads, on the card."""

    def __init__(self, matrices: Mapping[str, Placed], vectors: Mapping[str, Address]) -> None:
        self._matrices, self._vectors = matrices, vectors

    def matrix(self, name: str) -> Placed:
        return self._matrices[name]

    def vector(self, name: str) -> Address:
        return self._vectors[name]


def weight_bytes(graph: Graph, source: WeightSource) -> int:
    """What `place_weights` takes of the card."""
    layouts = (layout_of(source.tensor(name)) for name in matrices_of(graph))
    raw = sum(padded(source.tensor(name).raw.size) for name in _raw(graph, source))
    vectors = sum(padded(4 * source.tensor(name).shape[0]) for name in vectors_of(graph))
    return sum(padded(one.bytes) for one in layouts) + raw + vectors


def staging_bytes(graph: Graph, source: WeightSource) -> int:
    """What `place_weights` takes for what is on its way."""
    workers, piece = _staging(graph, source)
    return workers * (2 * padded(piece) + padded(FAULT_BYTES))


def _staging(graph: Graph, source: WeightSource) -> tuple[int, int]:
    """How many workers there are, and the bytes of a piece: at least one row of each weight."""
    tensors = [source.tensor(name) for name in matrices_of(graph)]
    longest = max((tensor.raw.size for tensor in tensors), default=0)
    row = max((tensor.row_bytes() for tensor in tensors), default=0)
    return min(WORKERS, len(tensors)), max(row, min(PIECE, longest))


def matrices_of(graph: Graph) -> tuple[str, ...]:
    """Names of the weights of projections and embeddings, each once."""
    names: list[str] = []
    for op in graph.ops:
        if isinstance(op, Project):
            names += op.weights
        elif isinstance(op, Embed):
            names.append(op.weight)
    return tuple(dict.fromkeys(names))


def vectors_of(graph: Graph) -> tuple[str, ...]:
    """Names of the weights of norms, each once."""
    norms = (op for op in graph.ops if isinstance(op, RmsNorm | HeadNorm))
    return tuple(dict.fromkeys(op.weight for op in norms if op.weight is not None))


def _raw(graph: Graph, source: WeightSource) -> tuple[str, ...]:
    embedded = {op.weight for op in graph.ops if isinstance(op, Embed)}
    return tuple(name for name in embedded if source.tensor(name).type in FLOATS)


def layout_of(tensor: BoundTensor) -> Layout:
    return Layout.of(tensor.type, tensor.shape[0], tensor.rows)


def place_weights(
    card: Card,
    pinned: Pinned,
    pipelines: Pipelines,
    memory: Memory,
    graph: Graph,
    source: WeightSource,
) -> DeviceWeights:
    """Raises `ModelError` for a scale or a float weight that is not finite."""
    raw = set(_raw(graph, source))
    matrices = {
        name: _take(memory, source.tensor(name), name in raw) for name in matrices_of(graph)
    }
    longest = sorted(matrices.values(), key=lambda one: -one.layout.bytes)
    workers, piece = _staging(graph, source)
    hands = [_Hand(card.side(), pipelines, memory, piece) for _ in range(workers)]
    card.wait()  # what was taken is zero from here on, also for the streams of the hands
    with ThreadPoolExecutor(max(1, workers)) as pool:
        shares = [longest[first::workers] for first in range(workers)]
        list(pool.map(lambda hand, share: hand.place(share, source), hands, shares))
    vectors = {name: _vector(pinned, memory, source.vector(name)) for name in vectors_of(graph)}
    return DeviceWeights(matrices, vectors)


def _take(memory: Memory, tensor: BoundTensor, has_raw: bool) -> Placed:
    layout = layout_of(tensor)
    codes = memory.take("weights", layout.bytes)
    raw = memory.take("weights", tensor.raw.size) if has_raw else 0
    return Placed(tensor.name, layout, codes, raw)


def _vector(pinned: Pinned, memory: Memory, values: NDArray[np.float32]) -> Address:
    where = memory.take("weights", values.nbytes)
    pinned.up(where, values)
    return where


class _Hand:
    """One worker: its own queue, two pieces of pinned memory and where they go on the card."""

    def __init__(self, card: Card, pipelines: Pipelines, memory: Memory, size: int) -> None:
        self._card, self._pipelines = card, pipelines
        self._host = [card.pinned(size) for _ in range(2)]
        self._stage = [memory.take("staging", size) for _ in range(2)]
        self._done: list[Callable[[], None]] = [lambda: None, lambda: None]
        self._fault = memory.take("staging", FAULT_BYTES)
        self._said = card.pinned(FAULT_BYTES)
        self._turn = 0

    def place(self, share: Sequence[Placed], source: WeightSource) -> None:
        self._card.enter()
        for placed in share:
            tensor = source.tensor(placed.name)
            self._card.fill(self._fault, FAULT_BYTES, 0xFF)
            for piece in _pieces(tensor, len(self._host[0])):
                self._put(placed, tensor, piece, source)
            self._card.download(self._said, self._fault)
            for reached in self._done:
                reached()
            self._done = [lambda: None, lambda: None]
            self._card.wait()
            if int(self._said.view(np.uint64)[0]) != NO_FAULT:
                raise ModelError(
                    f"{placed.name} holds an infinite or NaN scale.",
                    "The file is damaged or badly converted; fetch or convert it again.",
                )

    def _put(self, placed: Placed, tensor: BoundTensor, piece: range, source: WeightSource) -> None:
        turn = self._turn = 1 - self._turn
        self._done[turn]()
        row = tensor.row_bytes()
        span = slice(piece.start * row, piece.stop * row)
        host, stage = self._host[turn][: span.stop - span.start], self._stage[turn]
        source.read_into(tensor.name, span.start, host)
        self._card.upload(stage, host)
        if placed.raw:
            self._card.upload(placed.raw + span.start, host)
        rows = len(piece)
        if piece.stop == tensor.rows:
            rows = round_up(tensor.rows, PAD) - piece.start
        layout = placed.layout
        args = Place(
            stage,
            placed.codes,
            Faults(self._fault, 0),
            piece.start,
            len(piece),
            rows,
            layout.width,
        )
        name = f"place_{tensor.type.name.lower()}"
        self._card.launch(self._pipelines.kernel(name, 0), _shape(layout, rows), args)
        self._done[turn] = self._card.mark()


def _pieces(tensor: BoundTensor, size: int) -> Iterator[range]:
    """Runs of outputs that fit into `size` bytes of the file."""
    step = max(1, size // tensor.row_bytes())
    for first in range(0, tensor.rows, step):
        yield range(first, min(first + step, tensor.rows))


def _shape(layout: Layout, rows: int) -> Shape:
    if layout.type in FLOATS:
        blocks = -(-rows * layout.groups // (THREADS // 32))
    else:
        words = layout.groups * GROUP_BYTES[layout.type] // 4
        blocks = -(-rows * words // THREADS)
    return Shape((blocks, 1, 1), THREADS)


__all__ = ["DeviceWeights", "Placed", "WeightSource", "place_weights", "weight_bytes"]
