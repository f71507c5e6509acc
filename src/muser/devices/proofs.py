"""The digests of `graph/conformance.py` through a device's real pipelines, one operator each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from muser.devices.device import Limits, Step
from muser.formats import BlockType
from muser.graph import (
    Activation,
    Attention,
    CacheSpec,
    Embed,
    GatedAct,
    Graph,
    KvAppend,
    Op,
    Project,
    RmsNorm,
    Rope,
    RopeSpec,
    Softcap,
    conformance,
    oracle,
)
from muser.graph.arithmetic import F32, KV_GRID, f32, grid_rows
from muser.kv import Geometry
from muser.weights import BoundTensor, GridTensor


class Provable(Protocol):
    """A runner whose rows and caches can be looked into."""

    def play(self, step: Step) -> None:
        """One step, which leaves its rows where they are."""

    def put_rows(self, name: str, rows: F32) -> None:
        """The first rows called `name`."""

    def get_rows(self, name: str, count: int) -> F32:
        """The first `count` rows called `name`."""

    def import_rows(
        self,
        layer: int,
        slot: int,
        first: int,
        keys: NDArray[np.float16],
        values: NDArray[np.float16],
    ) -> None:
        """K and V of the positions from `first` on, f16 `[positions, kv heads, head_dim]`."""

    def export_rows(
        self, layer: int, slot: int, first: int, last: int
    ) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """The stored K and V of positions `first` to `last` − 1."""

    def close(self) -> None: ...


Opens: TypeAlias = Callable[[Graph, "OneOperator", Limits], Provable]
"""Lowers a graph of one operator on the device that proves itself."""
Rows = Mapping[str, F32]
CUTS = ((17,), (4, 13), (1,) * 17)
"""The rows of a vector in steps that meet every row bucket."""


def operator_checks(opens: Opens) -> Iterator[tuple[str, int]]:
    """Name of each check and in how many places it differs."""
    yield "kv_append", _append(opens)
    for norm in conformance.NORMS:
        yield f"norm of {norm.count}", int(_norm(opens, norm) != norm.digest)
    yield from attention_checks(opens)
    for weights in conformance.WEIGHTS:
        yield from _weights(opens, weights)
    for rope in conformance.ROPES:
        yield f"rope {rope.pairing}", _rope(opens, rope)
    yield "silu_gate", _silu_gate(opens)
    yield "softcap", _softcap(opens)


def attention_checks(opens: Opens) -> Iterator[tuple[str, int]]:
    """Those of attention, of the same form."""
    for vector in conformance.ATTENTION:
        name = f"attention {vector.digest} of heads of {vector.dim}"
        yield name, int(_attention(opens, vector) != vector.digest)


@dataclass(frozen=True, slots=True)
class OneOperator:
    """The weights of a graph of one operator, by name."""

    tensors: Mapping[str, BoundTensor] = field(default_factory=dict)
    origin: None = None
    memory: None = None

    def read_into(self, name: str, first: int, target: NDArray[np.uint8]) -> None:
        target[:] = self.tensors[name].raw[first : first + target.size]

    def tensor(self, name: str) -> BoundTensor:
        return self.tensors[name]

    def vector(self, name: str) -> F32:
        return self.tensors[name].raw.view(np.float32)

    def grid(self, name: str) -> GridTensor:
        tensor = self.tensors[name]
        width, rows = tensor.shape
        codes, steps = oracle.weight_grid(tensor.type, tensor.raw.reshape(rows, -1))
        flat = codes.reshape(rows, -1)[:, :width].astype(np.int16)
        return GridTensor(np.ascontiguousarray(flat), steps.astype(np.int8))


def _vector(name: str, values: F32) -> OneOperator:
    return OneOperator(
        {name: BoundTensor(name, BlockType.F32, values.shape, values.view(np.uint8))}
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    """What one operator needs beside its rows."""

    weights: OneOperator = field(default_factory=OneOperator)
    caches: tuple[CacheSpec, ...] = ()
    ropes: Mapping[str, RopeSpec] = field(default_factory=dict)
    vocabulary: int = 1
    context: int = conformance.ROWS


def _runner(opens: Opens, op: Op, rows: Rows, setting: _Setting) -> closing[Provable]:
    """One operator, for as many rows a step as `rows` has; closed whatever comes of it."""
    widths = {name: values.shape[1] for name, values in rows.items()}
    chunk = max(len(values) for values in rows.values())
    graph = Graph(
        architecture="check",
        ops=(op,),
        rows=widths,
        weights={},
        caches=setting.caches,
        ropes=setting.ropes,
        vocabulary=setting.vocabulary,
        context=setting.context,
    )
    limits = Limits(context=setting.context, slots=1, chunk=chunk)
    return closing(opens(graph, setting.weights, limits))


def _play(runner: Provable, rows: Rows, positions: NDArray[np.int32], vocabulary: int = 1) -> None:
    """Token ids are positions."""
    for name, values in rows.items():
        runner.put_rows(name, values)
    every = np.arange(len(positions), dtype=np.int32)
    tokens = np.minimum(positions, vocabulary - 1)
    runner.play(Step(tokens, positions, np.zeros_like(positions), every))


def _cut(runner: Provable, rows: Rows, target: str, sizes: Sequence[int]) -> F32:
    """The target's rows, computed in steps of `sizes`."""
    parts, first = [], 0
    for size in sizes:
        part = {name: values[first : first + size] for name, values in rows.items()}
        _play(runner, part, np.arange(first, first + size, dtype=np.int32))
        parts.append(runner.get_rows(target, size))
        first += size
    return np.concatenate(parts)


def _wrong_cuts(
    opens: Opens, op: Op, rows: Rows, digest: str, setting: _Setting | None = None
) -> int:
    """In how many ways of cutting the rows "y" the digest differs."""
    with _runner(opens, op, rows, setting or _Setting()) as runner:
        return sum(conformance.digest(_cut(runner, rows, "y", cut)) != digest for cut in CUTS)


def _target(width: int) -> F32:
    return np.zeros((conformance.ROWS, width), np.float32)


def _weights(opens: Opens, vector: conformance.WeightVector) -> Iterator[tuple[str, int]]:
    name, shape = vector.type.name.lower(), (vector.width, vector.out)
    raw = np.ascontiguousarray(vector.weights()).reshape(-1)
    tensors = OneOperator({"w": BoundTensor("w", vector.type, shape, raw)})
    setting = _Setting(tensors, vocabulary=vector.out, context=vector.out)
    target = {"y": np.zeros(shape[::-1], np.float32)}
    with _runner(opens, Embed("y", "w", "embed"), target, setting) as runner:
        _play(runner, {}, np.arange(vector.out, dtype=np.int32), vector.out)
        made = conformance.digest(runner.get_rows("y", vector.out))
    yield f"embed_{name}", int(made != vector.values)
    op = Project("x", ("y",), ("w",), ("project",))
    rows = {"x": vector.rows(), "y": _target(vector.out)}
    yield f"project_{name}", _wrong_cuts(opens, op, rows, vector.products, setting)


def _rope(opens: Opens, vector: conformance.RopeVector) -> int:
    rows = {"x": vector.rows(), "y": _target(64)}
    op = Rope("x", "y", 2, 32, "table", "rope")
    return _wrong_cuts(opens, op, rows, vector.digest, _Setting(ropes={"table": vector.spec()}))


def _silu_gate(opens: Opens) -> int:
    rows = {"gate": conformance.gate_rows(), "up": conformance.up_rows(), "y": _target(100)}
    op = GatedAct("gate", "up", "y", Activation.SILU, "gate")
    return _wrong_cuts(opens, op, rows, conformance.SILU_GATE)


def _softcap(opens: Opens) -> int:
    rows = {"x": conformance.gate_rows(), "y": _target(100)}
    op = Softcap("x", "y", conformance.SOFTCAP_CAP, "softcap")
    return _wrong_cuts(opens, op, rows, conformance.SOFTCAP)


def _norm(opens: Opens, vector: conformance.NormVector) -> str:
    op = RmsNorm("x", "y", "w", conformance.NORM_EPS, "norm")
    rows = {"x": vector.row()[None], "y": np.zeros((1, vector.count), np.float32)}
    with _runner(opens, op, rows, _Setting(_vector("w", vector.weight()))) as runner:
        _play(runner, rows, np.zeros(1, np.int32))
        return conformance.digest(runner.get_rows("y", 1))


def _append(opens: Opens) -> int:
    row = np.array([[f32(text) for text, _ in conformance.GRID]], np.float32)
    codes = np.array([code for _, code in conformance.GRID], np.int16)
    spec = CacheSpec(kv_heads=1, head_dim=row.size, window=None)
    rows = {"k": row, "v": row}
    with _runner(opens, KvAppend("k", "v", 0, "kv"), rows, _Setting(caches=(spec,))) as runner:
        _play(runner, rows, np.zeros(1, np.int32))
        stored = runner.export_rows(0, 0, 0, 1)
    expected = np.ldexp(codes.astype(np.float32), conformance.GRID_STEP).astype(np.float16)
    return sum(conformance.mismatches(expected, plane[0, 0]) for plane in stored)


def _attention(opens: Opens, vector: conformance.AttentionVector) -> str:
    """`last` − 1 is the query's position, and the window hides what lies before `first`."""
    window = vector.last - vector.first if vector.first else None
    spec = CacheSpec(kv_heads=1, head_dim=vector.dim, window=window)
    query = vector.query().reshape(1, -1)
    rows = {"q": query, "out": np.zeros_like(query)}
    op = Attention("q", "out", 0, 4, vector.dim**-0.5, "attention")
    first = max(0, vector.last - Geometry(window, vector.last, 1).capacity)
    keys, values = (
        grid_to_half(rows)[first : vector.last] for rows in (vector.keys(), vector.values())
    )
    with _runner(opens, op, rows, _Setting(caches=(spec,), context=vector.last)) as runner:
        runner.import_rows(0, 0, first, keys, values)
        _play(runner, rows, np.array([vector.last - 1], np.int32))
        return conformance.digest(runner.get_rows("out", 1))


def grid_to_half(rows: F32) -> NDArray[np.float16]:
    """Rows `[n, d]` of the vectors, snapped as they are stored: f16 `[n, 1, d]`."""
    codes, steps = grid_rows(rows[:, None, :], *KV_GRID)
    return np.ldexp(codes.astype(np.float64), steps[..., None]).astype(np.float16)
