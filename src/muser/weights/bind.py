"""Bind the tensors of a file to the inputs of a graph, in place, and check what the graph needs."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muser.errors import ModelError
from muser.formats import FLOATS, READABLE, BlockType, GgufFile, dequantise
from muser.graph import Graph
from muser.graph.arithmetic import GRID_BLOCK, z
from muser.graph.oracle import weight_grid

GRID_CHUNK = 1 << 18  # elements snapped at once: a few MB of scratch
CHECK_CHUNK = 1 << 20  # blocks looked at at once, so that no temporary has a tensor's size
FINITE = "every scale is finite"
LEAST_FACTOR = 2.0**-8  # the largest angle, 2^24 positions over it, keeps its phase below 2^63


@dataclass(frozen=True, slots=True)
class BoundTensor:
    """A tensor where it lies in the file: `shape` `[in, out]` or `[n]`, `raw` uint8 `[bytes]`."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    @property
    def rows(self) -> int:
        return 1 if len(self.shape) == 1 else self.shape[1]

    def row_bytes(self) -> int:
        return self.raw.size // self.rows


@dataclass(frozen=True, slots=True)
class GridTensor:
    """Float weights snapped for products: n·2^e, `codes` int16 `[out, in]`.

    `steps` int8 `[out, ceil(in/128)]`; |code| ≤ 2047.
    """

    codes: NDArray[np.int16]
    steps: NDArray[np.int8]


class Memory(Protocol):
    """Words that outlive this process (`kernels/shelf.py`)."""

    def note(self, name: str) -> str | None:
        """A remembered word, or None."""

    def remember(self, name: str, word: str) -> None:
        """Keep a word."""


class Origin(Protocol):
    """The model file that tensors lie in, as it was opened."""

    @property
    def path(self) -> Path: ...
    @property
    def opened(self) -> os.stat_result: ...
    def verify_unchanged(self) -> None: ...


class Weights:
    """The tensors of `graph` in `file`; keeps the mapping alive.

    That every scale is finite takes a look at all of the file; `memory` saves it for a file that
    was looked at in this very state. `looks` False: the device looks at the matrices itself, as it
    takes them.

    Raises `ModelError` for a tensor that is missing, unexpected, misshapen, of a type without
    kernels, or whose values make the graph the wrong one.
    """

    def __init__(
        self, file: GgufFile, graph: Graph, memory: Memory | None = None, looks: bool = True
    ) -> None:
        self.file = file
        self.graph = graph
        self.memory = memory
        self.tensors: Mapping[str, BoundTensor] = MappingProxyType(_bind(file, graph))
        if looks:
            _check_all_scales(self.tensors.values(), file, memory)
        else:
            for tensor in self.tensors.values():
                if len(tensor.shape) == 1:
                    _check_scales(tensor, file)
        for uniform in graph.uniform:
            _check_uniform(
                [self.vector(name) for name in uniform.tensors],
                uniform.value,
                uniform.tensors[0],
                uniform.otherwise,
            )
        for rope in graph.ropes.values():
            if rope.factors is not None:
                _check_factors(self.vector(rope.factors), rope.factors)

    @property
    def origin(self) -> Origin:
        """The file that is mapped, which another may have taken the name of since."""
        return self.file

    def tensor(self, name: str) -> BoundTensor:
        return self.tensors[name]

    def read_into(self, name: str, first: int, target: NDArray[np.uint8]) -> None:
        """Fills `target` with a tensor's bytes from `first` on; see `GgufFile.read_into`."""
        self.file.read_into(name, first, target)

    def vector(self, name: str) -> NDArray[np.float32]:
        """A float tensor as f32 `[n]`, values below 2^-40 as zero."""
        tensor = self.tensors[name]
        values = z(dequantise(tensor.type, tensor.raw.reshape(1, -1))[0])
        return np.ascontiguousarray(values, np.float32)

    def grid(self, name: str) -> GridTensor:
        """Float weights of a projection on their grid (made anew at each call)."""
        tensor = self.tensors[name]
        width, rows = tensor.shape
        raw = tensor.raw.reshape(rows, -1)
        blocks = -(-width // GRID_BLOCK)
        codes = np.empty((rows, width), np.int16)
        steps = np.empty((rows, blocks), np.int8)
        at_once = max(1, GRID_CHUNK // width)
        for start in range(0, rows, at_once):
            part = slice(start, start + at_once)
            wide, steps[part] = weight_grid(tensor.type, raw[part])
            codes[part] = wide.reshape(len(wide), -1)[:, :width]
        return GridTensor(codes, steps)

    @cached_property
    def census(self) -> Mapping[str, int]:
        """Block type name to the number of tensors that have it."""
        counts: dict[str, int] = {}
        for tensor in self.tensors.values():
            counts[tensor.type.name] = counts.get(tensor.type.name, 0) + 1
        return MappingProxyType(dict(sorted(counts.items())))


def _bind(file: GgufFile, graph: Graph) -> dict[str, BoundTensor]:
    surplus = sorted(set(file.tensors) - set(graph.weights))
    if surplus:
        raise ModelError(
            f"{file.path} holds {surplus[0]!r}{_and_more(surplus)}, which the"
            f" {graph.architecture} graph does not use.",
            "Running without it would give other text than the model's; use a plain file.",
        )
    return {name: _bind_one(file, name, shape) for name, shape in graph.weights.items()}


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more tensors" if len(names) > 1 else ""


def _bind_one(file: GgufFile, name: str, shape: tuple[int, ...]) -> BoundTensor:
    info = file.tensors.get(name)
    if info is None:
        raise ModelError(
            f"{file.path} has no tensor {name!r}.", "The file is incomplete; fetch it again."
        )
    if info.shape != shape:
        raise ModelError(
            f"{name} of {file.path} has shape {list(info.shape)}, but its metadata call for"
            f" {list(shape)}.",
            "The file is inconsistent; convert the model again.",
        )
    allowed = READABLE if len(shape) == 2 else set(FLOATS)
    if info.type not in allowed:
        names = ", ".join(sorted(kind.name for kind in allowed))
        raise ModelError(
            f"{name} of {file.path} has type {info.type.name}, which cannot be used there.",
            f"Supported there: {names}.",
        )
    return BoundTensor(name, info.type, info.shape, file.raw(name))


def _check_all_scales(
    tensors: Iterable[BoundTensor], file: GgufFile, memory: Memory | None
) -> None:
    name = f"finite-{file.identity}"
    if memory is not None and memory.note(name) == FINITE:
        return
    for tensor in tensors:
        _check_scales(tensor, file)
    if memory is not None:
        memory.remember(name, FINITE)


def _check_scales(tensor: BoundTensor, file: GgufFile) -> None:
    """Every scale, or float weight, is finite: tested by exponent bits, in place."""
    blocks = tensor.raw.reshape(-1, tensor.type.bytes)
    starts = range(0, len(blocks), CHECK_CHUNK)
    if not all(_finite(tensor.type, blocks[at : at + CHECK_CHUNK]) for at in starts):
        raise ModelError(
            f"{tensor.name} of {file.path} holds an infinite or NaN scale.",
            "The file is damaged or badly converted; fetch or convert it again.",
        )


def _finite(kind: BlockType, blocks: NDArray[np.uint8]) -> bool:
    if kind is BlockType.F32:
        mask = np.uint32(0x7F800000)
        return not bool(np.any((blocks.view("<u4") & mask) == mask))
    if kind is BlockType.BF16:
        return _halves_finite(blocks.view("<u2"), 0x7F80)
    if kind is BlockType.F16:
        return _halves_finite(blocks.view("<u2"), 0x7C00)
    return all(
        _halves_finite(np.ascontiguousarray(blocks[:, at : at + 2]).view("<u2"), 0x7C00)
        for at in kind.scales_at
    )


def _halves_finite(words: NDArray[np.uint16], mask: int) -> bool:
    return not bool(np.any((words & np.uint16(mask)) == np.uint16(mask)))


def _check_factors(factors: NDArray[np.float32], name: str) -> None:
    if not np.all(factors >= np.float32(LEAST_FACTOR)):
        raise ModelError(
            f"{name} holds {factors.min():g}: angles are divided by it, so it must be at least"
            f" {LEAST_FACTOR:g}.",
            "The file is damaged or badly converted; fetch or convert it again.",
        )


def _check_uniform(
    vectors: list[NDArray[np.float32]], value: float | None, name: str, otherwise: str
) -> None:
    expected = np.float32(value) if value is not None else vectors[0][0]
    if any(bool(np.any(vector != expected)) for vector in vectors):
        raise ModelError(
            f"{name} and its like are not the constant {float(expected):g}: this is {otherwise}.",
            "This architecture's graph would be wrong for it; another converter is needed.",
        )
