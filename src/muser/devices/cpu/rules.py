"""From operators to kernels: a table of patterns, the longest match first, no entry an error.

A pattern is one to three consecutive operator kinds. A fused pattern has the unfused sequence as
its oracle, and is taken only where nothing else could see the rows between.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from muser.devices.cpu.lowering import Lowering, block_size, scratch_fields
from muser.devices.cpu.moves import CACHE, Move
from muser.errors import DeviceError
from muser.formats import FLOATS
from muser.graph import (
    Activation,
    Add,
    Argmax,
    Attention,
    Embed,
    GatedAct,
    HeadNorm,
    KvAppend,
    Op,
    Pairing,
    Project,
    RmsNorm,
    Rope,
    Scale,
    SigmoidGate,
    Softcap,
    TakeRows,
)
from muser.graph.arithmetic import attention_constant
from muser.kernels import address

STRIPED_WIDTH = 8192  # elementwise rows from here on are cut by columns
ARGMAX = "argmax"


def lower(lowering: Lowering) -> tuple[Move, ...]:
    """The moves of the whole graph. Raises `DeviceError` for an operator without a rule."""
    ops, at = lowering.graph.ops, 0
    while at < len(ops):
        at += _lower_at(lowering, ops, at)
    return tuple(lowering.moves)


def _lower_at(lowering: Lowering, ops: tuple[Op, ...], at: int) -> int:
    for length in (3, 2, 1):
        some = ops[at : at + length]
        rule = PATTERNS.get(tuple(type(op) for op in some))
        if len(some) == length and rule is not None and rule(lowering, *some):
            return length
    raise DeviceError(
        f"The CPU device has no pipeline for {type(ops[at]).__name__} ({ops[at]}).",
        "Use a device that has one.",
    )


def _embed(low: Lowering, op: Embed) -> bool:
    tensor = low.weights.tensor(op.weight)
    args = low.args(
        weight=address(tensor.raw),
        row_bytes=tensor.row_bytes(),
        width=low.width(op.target),
        out=low.row(op.target),
    )
    name = tensor.type.name
    low.add(f"embed_{name.lower()}", args, op.node, (), (op.target,), tensor_type=name)
    return True


def _norm_fields(low: Lowering, op: RmsNorm | HeadNorm) -> dict[str, int | float]:
    heads, dim = (op.heads, op.head_dim) if isinstance(op, HeadNorm) else (1, low.width(op.source))
    return {
        "weight": 0 if op.weight is None else low.vector(op.weight),
        "heads": heads,
        "head_dim": dim,
        "eps": op.eps,
        "inverse": float(np.float32(1.0 / dim)),
    }


def _norm_type(low: Lowering, op: RmsNorm | HeadNorm) -> str | None:
    return None if op.weight is None else low.weights.tensor(op.weight).type.name


def _norm(low: Lowering, op: RmsNorm | HeadNorm) -> bool:
    args = low.args(x=low.row(op.source), out=low.row(op.target), **_norm_fields(low, op))
    kind = _norm_type(low, op)
    low.add("norm", args, op.node, (op.source,), (op.target,), tensor_type=kind)
    return True


def _norm_project(low: Lowering, norm: RmsNorm, op: Project) -> bool:
    """The normed row and its quantised form by one entry, then what reads them."""
    if norm.target != op.source:
        return False
    block = block_size(low.weights.tensor(op.weights[0]).type)
    args = low.args(
        x=low.row(norm.source),
        normed=low.row(norm.target),
        **_norm_fields(low, norm),
        **low.quantised_fields(norm.target, block),
    )
    touched = (norm.source,), (norm.target,), _norm_type(low, norm)
    low.add_quantising("norm_", args, norm.node, norm.target, block, *touched)
    return _project(low, op)


def _add_norm_project(low: Lowering, add: Add, norm: RmsNorm, op: Project) -> bool:
    """The same where the normed row is a sum, which is left behind too."""
    width = low.width(add.target)
    if not (add.target == norm.source != norm.target == op.source) or width >= STRIPED_WIDTH:
        return False
    block = block_size(low.weights.tensor(op.weights[0]).type)
    args = low.args(
        x=low.row(add.left),
        y=low.row(add.right),
        out=low.row(add.target),
        normed=low.row(norm.target),
        **_norm_fields(low, norm),
        **low.quantised_fields(norm.target, block),
    )
    touched = (add.left, add.right), (add.target, norm.target), _norm_type(low, norm)
    node = f"{add.node}, {norm.node}"
    low.add_quantising("add_norm_", args, node, norm.target, block, *touched)
    return _project(low, op)


def _project(low: Lowering, op: Project) -> bool:
    """The group's quantised rows are made once per block size, then one entry per weight."""
    for target, weight, node in zip(op.targets, op.weights, op.nodes, strict=True):
        tensor = low.weights.tensor(weight)
        scratch, held = low.quantise(op.source, tensor.type)
        kind, width = tensor.type.name, low.width(target)
        args = low.args(
            out=low.row(target),
            width=low.width(op.source),
            out_width=width,
            **scratch_fields(scratch),
            **low.weight_fields(tensor),
        )
        low.add(
            "project_grid" if tensor.type in FLOATS else f"project_{kind.lower()}",
            args,
            node,
            (held,),
            (target,),
            by_row=False,
            columns=width,
            tensor_type=kind,
            tensors=(weight,),
        )
    return True


def _rope(low: Lowering, op: Rope) -> bool:
    spec = low.graph.ropes[op.table]
    args = low.args(
        x=low.row(op.source),
        out=low.row(op.target),
        weight=low.table(op.table),
        heads=op.heads,
        head_dim=op.head_dim,
        rotated=spec.rotated,
    )
    halves = spec.pairing is Pairing.HALF_SPLIT
    kernel = "rope_half_split" if halves else "rope_interleaved"
    low.add(kernel, args, op.node, (op.source,), (op.target,))
    return True


def _check_head(low: Lowering, layer: int) -> None:
    """Query codes of G(q, 20 − ⌈log2 d⌉, −60) are int16: small heads need wider ones."""
    size = low.arena.caches[layer].spec.head_dim
    least, most = low.constants.min_head, low.constants.max_head
    if not least <= size <= most:
        raise DeviceError(
            f"Layer {layer} has attention heads of {size} elements;"
            f" the CPU device takes {least} to {most}.",
            "Use the device `oracle`, or a model with other heads.",
        )


def cache_fields(low: Lowering, layer: int) -> dict[str, int]:
    cache = low.arena.caches[layer]
    return {
        "key": address(cache.key.codes),
        "key_steps": address(cache.key.steps),
        "value": address(cache.value.codes),
        "value_steps": address(cache.value.steps),
        "kv_heads": cache.spec.kv_heads,
        "head_dim": cache.spec.head_dim,
        "capacity": cache.geometry.capacity,
        "window": cache.spec.window or 0,
    }


def _kv_append(low: Lowering, op: KvAppend) -> bool:
    args = low.args(x=low.row(op.key), y=low.row(op.value), **cache_fields(low, op.layer))
    low.add("kv_append", args, op.node, (op.key, op.value), (f"{CACHE}{op.layer}",))
    return True


def _attention(low: Lowering, op: Attention) -> bool:
    _check_head(low, op.layer)
    args = low.args(
        x=low.row(op.query),
        out=low.row(op.target),
        heads=op.heads,
        factor=float(attention_constant(op.scale)),
        **cache_fields(low, op.layer),
    )
    reads = (op.query, f"{CACHE}{op.layer}")
    low.add("attention", args, op.node, reads, (op.target,), by_row=False)
    return True


def _elementwise(
    low: Lowering, kernel: str, node: str, names: tuple[str, ...], target: str, **constants: float
) -> bool:
    """`names`: one or two source rows."""
    width = low.width(target)
    striped = width >= STRIPED_WIDTH
    args = low.args(
        x=low.row(names[0]),
        y=low.row(names[-1]),
        out=low.row(target),
        width=width,
        striped=int(striped),
        **constants,
    )
    low.add(kernel, args, node, names, (target,), by_row=not striped, columns=width)
    return True


def _sigmoid_gate(low: Lowering, op: SigmoidGate) -> bool:
    return _elementwise(low, "sigmoid_gate", op.node, (op.source, op.gate), op.target)


def _gated_act(low: Lowering, op: GatedAct) -> bool:
    kernel = "silu_gate" if op.activation is Activation.SILU else "gelu_gate"
    return _elementwise(low, kernel, op.node, (op.gate, op.up), op.target)


def _add(low: Lowering, op: Add) -> bool:
    return _elementwise(low, "add", op.node, (op.left, op.right), op.target)


def _scale(low: Lowering, op: Scale) -> bool:
    return _elementwise(low, "scale", op.node, (op.source,), op.target, factor=op.factor)


def cap_constants(cap: float) -> dict[str, float]:
    rounded = float(np.float32(cap))
    return {"factor": rounded, "inverse": float(np.float32(1.0 / rounded))}


def _softcap(low: Lowering, op: Softcap) -> bool:
    constants = cap_constants(op.cap)
    return _elementwise(low, "softcap", op.node, (op.source,), op.target, **constants)


def _scale_softcap(low: Lowering, scale: Scale, cap: Softcap) -> bool:
    if not scale.target == cap.source == cap.target:
        return False
    constants = cap_constants(cap.cap) | {"eps": scale.factor}
    names = (scale.source,)
    return _elementwise(low, "scale_softcap", cap.node, names, cap.target, **constants)


def _take_rows(low: Lowering, op: TakeRows) -> bool:
    for name in op.rows:
        args = low.args(out=low.row(name), width=low.width(name))
        low.add("take_rows", args, op.node, (name,), (name,), by_row=False)
    low.take_count()
    return True


def _argmax(low: Lowering, op: Argmax) -> bool:
    width = low.width(op.source)
    args = low.args(x=low.row(op.source), out=low.row(ARGMAX), width=width)
    low.add("argmax", args, op.node, (op.source,), (ARGMAX,))
    return True


Rule = Callable[..., bool]
PATTERNS: Mapping[tuple[type[Op], ...], Rule] = MappingProxyType(
    {
        (Add, RmsNorm, Project): _add_norm_project,
        (RmsNorm, Project): _norm_project,
        (Scale, Softcap): _scale_softcap,
        (Embed,): _embed,
        (RmsNorm,): _norm,
        (HeadNorm,): _norm,
        (Project,): _project,
        (Rope,): _rope,
        (KvAppend,): _kv_append,
        (Attention,): _attention,
        (SigmoidGate,): _sigmoid_gate,
        (GatedAct,): _gated_act,
        (Add,): _add,
        (Scale,): _scale,
        (Softcap,): _softcap,
        (TakeRows,): _take_rows,
        (Argmax,): _argmax,
    }
)
"""Kinds in a row to the rule that lowers them; a rule answers False where it does not fit."""
