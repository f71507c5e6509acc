"""The digests of `graph/conformance.py` through the device's real pipelines, one operator each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muser.devices.cpu.runner import CpuRunner
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
from muser.kernels import Library
from muser.weights import BoundTensor, GridTensor

Rows = Mapping[str, F32]
CUTS = ((17,), (4, 13), (1,) * 17)
"""The rows of a vector in steps that meet every row bucket."""


def operator_checks(library: Library) -> Iterator[tuple[str, int]]:
    """Name of each check and in how many places it differs."""
    yield "kv_append", _append(library)
    for norm in conformance.NORMS:
        yield f"norm of {norm.count}", int(_norm(library, norm) != norm.digest)
    for vector in conformance.ATTENTION:
        name = f"attention {vector.digest} of heads of {vector.dim}"
        yield name, int(_attention(library, vector) != vector.digest)
    for weights in conformance.WEIGHTS:
        yield from _weights(library, weights)
    for rope in conformance.ROPES:
        yield f"rope {rope.pairing}", _rope(library, rope)
    yield "silu_gate", _silu_gate(library)
    yield "softcap", _softcap(library)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of the little graphs below, by name."""

    tensors: Mapping[str, BoundTensor] = field(default_factory=dict)
    origin: None = None
    memory: None = None

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


def _vector(name: str, values: F32) -> _Weights:
    return _Weights({name: BoundTensor(name, BlockType.F32, values.shape, values.view(np.uint8))})


@dataclass(frozen=True, slots=True)
class _Setting:
    """What one operator needs beside its rows."""

    weights: _Weights = field(default_factory=_Weights)
    caches: tuple[CacheSpec, ...] = ()
    ropes: Mapping[str, RopeSpec] = field(default_factory=dict)
    vocabulary: int = 1
    context: int = conformance.ROWS


def _runner(library: Library, op: Op, rows: Rows, setting: _Setting) -> CpuRunner:
    """One operator, for as many rows a step as `rows` has."""
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
    return CpuRunner(library, 1, graph, setting.weights, limits)


def _play(runner: CpuRunner, rows: Rows, positions: NDArray[np.int32]) -> None:
    """Token ids are positions."""
    for name, values in rows.items():
        runner.rows[name][: len(values)] = values
    every = np.arange(len(positions), dtype=np.int32)
    tokens = np.minimum(positions, runner.vocabulary - 1)
    runner.play(Step(tokens, positions, np.zeros_like(positions), every))


def _cut(runner: CpuRunner, rows: Rows, target: str, sizes: Sequence[int]) -> F32:
    """The target's rows, computed in steps of `sizes`."""
    parts, first = [], 0
    for size in sizes:
        part = {name: values[first : first + size] for name, values in rows.items()}
        _play(runner, part, np.arange(first, first + size, dtype=np.int32))
        parts.append(runner.rows[target][:size].copy())
        first += size
    return np.concatenate(parts)


def _wrong_cuts(
    library: Library, op: Op, rows: Rows, digest: str, setting: _Setting | None = None
) -> int:
    """In how many ways of cutting the rows "y" the digest differs."""
    runner = _runner(library, op, rows, setting or _Setting())
    wrong = sum(conformance.digest(_cut(runner, rows, "y", cut)) != digest for cut in CUTS)
    runner.close()
    return wrong


def _target(width: int) -> F32:
    return np.zeros((conformance.ROWS, width), np.float32)


def _weights(library: Library, vector: conformance.WeightVector) -> Iterator[tuple[str, int]]:
    name, shape = vector.type.name.lower(), (vector.width, vector.out)
    raw = np.ascontiguousarray(vector.weights()).reshape(-1)
    tensors = _Weights({"w": BoundTensor("w", vector.type, shape, raw)})
    setting = _Setting(tensors, vocabulary=vector.out, context=vector.out)
    target = {"y": np.zeros(shape[::-1], np.float32)}
    runner = _runner(library, Embed("y", "w", "embed"), target, setting)
    _play(runner, {}, np.arange(vector.out, dtype=np.int32))
    yield f"embed_{name}", int(conformance.digest(runner.rows["y"]) != vector.values)
    runner.close()
    op = Project("x", ("y",), ("w",), ("project",))
    rows = {"x": vector.rows(), "y": _target(vector.out)}
    yield f"project_{name}", _wrong_cuts(library, op, rows, vector.products, setting)


def _rope(library: Library, vector: conformance.RopeVector) -> int:
    rows = {"x": vector.rows(), "y": _target(64)}
    op = Rope("x", "y", 2, 32, "table", "rope")
    return _wrong_cuts(library, op, rows, vector.digest, _Setting(ropes={"table": vector.spec()}))


def _silu_gate(library: Library) -> int:
    rows = {"gate": conformance.gate_rows(), "up": conformance.up_rows(), "y": _target(100)}
    op = GatedAct("gate", "up", "y", Activation.SILU, "gate")
    return _wrong_cuts(library, op, rows, conformance.SILU_GATE)


def _softcap(library: Library) -> int:
    rows = {"x": conformance.gate_rows(), "y": _target(100)}
    op = Softcap("x", "y", conformance.SOFTCAP_CAP, "softcap")
    return _wrong_cuts(library, op, rows, conformance.SOFTCAP)


def _norm(library: Library, vector: conformance.NormVector) -> str:
    op = RmsNorm("x", "y", "w", conformance.NORM_EPS, "norm")
    rows = {"x": vector.row()[None], "y": np.zeros((1, vector.count), np.float32)}
    runner = _runner(library, op, rows, _Setting(_vector("w", vector.weight())))
    _play(runner, rows, np.zeros(1, np.int32))
    runner.close()
    return conformance.digest(runner.rows["y"])


def _append(library: Library) -> int:
    row = np.array([[f32(text) for text, _ in conformance.GRID]], np.float32)
    codes = np.array([code for _, code in conformance.GRID], np.int16)
    spec = CacheSpec(kv_heads=1, head_dim=row.size, window=None)
    rows = {"k": row, "v": row}
    runner = _runner(library, KvAppend("k", "v", 0, "kv"), rows, _Setting(caches=(spec,)))
    _play(runner, rows, np.zeros(1, np.int32))
    runner.close()
    planes, first = (runner.caches[0].key, runner.caches[0].value), np.zeros(1, np.int64)
    wrong = sum(int(plane.steps[0, 0, 0] != conformance.GRID_STEP) for plane in planes)
    return wrong + sum(
        conformance.mismatches(codes, plane.codes_of(0, first)[0, 0, : row.size])
        for plane in planes
    )


def _attention(library: Library, vector: conformance.AttentionVector) -> str:
    """`last` − 1 is the query's position, and the window hides what lies before `first`."""
    window = vector.last - vector.first if vector.first else None
    spec = CacheSpec(kv_heads=1, head_dim=vector.dim, window=window)
    query = vector.query().reshape(1, -1)
    rows = {"q": query, "out": np.zeros_like(query)}
    op = Attention("q", "out", 0, 4, vector.dim**-0.5, "attention")
    runner = _runner(library, op, rows, _Setting(caches=(spec,), context=vector.last))
    first = max(0, vector.last - runner.caches[0].geometry.capacity)
    keys, values = (
        grid_to_half(rows)[first : vector.last] for rows in (vector.keys(), vector.values())
    )
    runner.caches[0].import_rows(0, first, keys, values)
    _play(runner, rows, np.array([vector.last - 1], np.int32))
    runner.close()
    return conformance.digest(runner.rows["out"])


def grid_to_half(rows: F32) -> NDArray[np.float16]:
    """Rows `[n, d]` of the vectors, snapped as they are stored: f16 `[n, 1, d]`."""
    codes, steps = grid_rows(rows[:, None, :], *KV_GRID)
    return np.ldexp(codes.astype(np.float64), steps[..., None]).astype(np.float16)
