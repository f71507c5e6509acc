"""Runs a graph operator by operator with the oracle: slow, plain, and right by definition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from muser.errors import ArithmeticFault
from muser.formats import BlockType, GgufFile, dequantise
from muser.graph import oracle
from muser.graph.arithmetic import F32, z
from muser.graph.ops import (
    Add,
    Argmax,
    Attention,
    Embed,
    GatedAct,
    Graph,
    HeadNorm,
    KvAppend,
    Op,
    Project,
    RmsNorm,
    Rope,
    Scale,
    SigmoidGate,
    Softcap,
    TakeRows,
)
from muser.graph.rope import rope_table

Watch = Callable[[str, F32], None]
Ints = NDArray[np.int32]


@dataclass(slots=True)
class _Plane:
    """One slot's K and V rows of one layer by absolute position, f16 `[positions, kv, dim]`."""

    keys: NDArray[np.float16]
    values: NDArray[np.float16]


@dataclass(slots=True)
class _Batch:
    """The rows of one step while they travel through the graph."""

    tokens: Ints
    positions: Ints
    slots: Ints
    outputs: Ints
    rows: dict[str, F32] = field(default_factory=dict)
    argmax: NDArray[np.int64] | None = None


class Interpreter:
    """The oracle of one model. Caches grow by position and never wrap: a ring must equal them."""

    def __init__(self, graph: Graph, file: GgufFile, context: int) -> None:
        self.graph = graph
        self.file = file
        self._planes: dict[tuple[int, int], _Plane] = {}
        self._context = context
        self._tables: dict[str, F32] = {}
        for name, spec in graph.ropes.items():
            self._tables[name] = rope_table(spec, context, self._vector(spec.factors))

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[int],
        watch: Watch | None = None,
    ) -> F32:
        """Logits f32 `[outputs, vocabulary]`; `watch(node, rows)` sees every written row.

        Raises `ArithmeticFault` naming the node whose value left the finite numbers.
        """
        batch = _Batch(_ints(tokens), _ints(positions), _ints(slots), _ints(outputs))
        for op in self.graph.ops:
            try:
                self._apply(batch, op)
            except ArithmeticFault as fault:
                where = op.nodes[0] if isinstance(op, Project) else op.node
                raise ArithmeticFault(f"At {where}: {fault.sentence}", fault.remedy) from fault
            if watch is not None:
                _show(batch, op, watch)
        return batch.rows["logits"]

    def _apply(self, batch: _Batch, op: Op) -> None:
        rows = batch.rows
        match op:
            case SigmoidGate():
                rows[op.target] = oracle.sigmoid_gate(rows[op.source], rows[op.gate])
            case GatedAct():
                rows[op.target] = oracle.gated_act(rows[op.gate], rows[op.up], op.activation)
            case Add():
                rows[op.target] = oracle.add(rows[op.left], rows[op.right])
            case Scale():
                rows[op.target] = oracle.scale(rows[op.source], op.factor)
            case Softcap():
                rows[op.target] = oracle.softcap(rows[op.source], op.cap)
            case TakeRows():
                for name in op.rows:
                    rows[name] = rows[name][batch.outputs]
            case Argmax():
                batch.argmax = oracle.argmax(rows[op.source])
            case Embed():
                self._embed(batch, op)
            case RmsNorm():
                weight = self._vector(op.weight)
                rows[op.target] = oracle.rms_norm(rows[op.source], weight, op.eps)
            case HeadNorm():
                weight = self._vector(op.weight)
                rows[op.target] = oracle.head_norm(rows[op.source], weight, op.heads, op.eps)
            case Project():
                self._project(batch, op)
            case Rope():
                self._rope(batch, op)
            case KvAppend():
                self._kv_append(batch, op)
            case Attention():
                self._attention(batch, op)
            case _:
                assert_never(op)

    def _weight(self, name: str) -> tuple[BlockType, NDArray[np.uint8]]:
        info = self.file.tensors[name]
        rows = 1 if len(info.shape) == 1 else info.shape[1]
        return info.type, self.file.raw(name).reshape(rows, -1)

    def _vector(self, name: str | None) -> F32 | None:
        return None if name is None else z(dequantise(*self._weight(name))[0])

    def _embed(self, batch: _Batch, op: Embed) -> None:
        kind, raw = self._weight(op.weight)
        batch.rows[op.target] = oracle.embed(kind, raw[batch.tokens])

    def _project(self, batch: _Batch, op: Project) -> None:
        source = batch.rows[op.source]
        for target, name in zip(op.targets, op.weights, strict=True):
            batch.rows[target] = oracle.project(source, *self._weight(name))

    def _rope(self, batch: _Batch, op: Rope) -> None:
        table = self._tables[op.table][batch.positions]
        pairing = self.graph.ropes[op.table].pairing
        batch.rows[op.target] = oracle.rope(batch.rows[op.source], table, op.heads, pairing)

    def _plane(self, slot: int, layer: int) -> _Plane:
        if (slot, layer) not in self._planes:
            spec = self.graph.caches[layer]
            shape = (self._context, spec.kv_heads, spec.head_dim)
            empty = np.zeros(shape, np.float16)
            self._planes[slot, layer] = _Plane(empty, empty.copy())
        return self._planes[slot, layer]

    def _kv_append(self, batch: _Batch, op: KvAppend) -> None:
        kv_heads = self.graph.caches[op.layer].kv_heads
        keys = oracle.snap_kv(batch.rows[op.key], kv_heads)
        values = oracle.snap_kv(batch.rows[op.value], kv_heads)
        for row, (slot, position) in enumerate(zip(batch.slots, batch.positions, strict=True)):
            plane = self._plane(int(slot), op.layer)
            plane.keys[position], plane.values[position] = keys[row], values[row]

    def _attention(self, batch: _Batch, op: Attention) -> None:
        spec = self.graph.caches[op.layer]
        q = batch.rows[op.query].reshape(len(batch.tokens), op.heads, spec.head_dim)
        out = np.empty((len(batch.tokens), op.heads * spec.head_dim), np.float32)
        last = batch.positions.astype(np.int64) + 1
        first = np.zeros_like(last) if spec.window is None else np.maximum(0, last - spec.window)
        visible = np.stack([first, last], axis=1)
        for slot in np.unique(batch.slots):
            mine = batch.slots == slot
            plane = self._plane(int(slot), op.layer)
            stop = int(last[mine].max())
            out[mine] = oracle.attention(
                q[mine], plane.keys[:stop], plane.values[:stop], visible[mine], op.scale
            )
        batch.rows[op.target] = out


def _ints(values: Sequence[int]) -> Ints:
    return np.asarray(values, np.int32)


def _show(batch: _Batch, op: Op, watch: Watch) -> None:
    if isinstance(op, Project):
        for target, node in zip(op.targets, op.nodes, strict=True):
            watch(node, batch.rows[target])
    elif isinstance(op, TakeRows):
        watch(op.node, batch.rows[op.rows[0]])
    elif not isinstance(op, KvAppend | Argmax):
        watch(op.node, batch.rows[op.target])
