"""Rules of what is neither a projection, nor attention, nor a norm of whole rows."""

from collections.abc import Mapping

from muser.devices.cuda.layouts import GROUP
from muser.devices.cuda.lowering import Lowering, inverse_of
from muser.devices.cuda.structs import (
    ArgmaxParts,
    Elementwise,
    Embedding,
    FirstOfParts,
    Heads,
    NormOfHeads,
    Rotation,
    Taking,
)
from muser.formats import FLOATS
from muser.graph import (
    Activation,
    Add,
    Embed,
    GatedAct,
    HeadNorm,
    KvAppend,
    Pairing,
    Rope,
    Scale,
    SigmoidGate,
    Softcap,
    TakeRows,
)

ALONE = 64  # threads of a block where there is one row
MANY = 256
KEYS = 2048  # logits that one block of the first token's search takes
MOST_PARTS = 128
MOST_HEAD = 256


def across(low: Lowering, width: int) -> tuple[tuple[int, int], int]:
    """Grid and block of a kernel whose threads take four elements each."""
    block = ALONE if low.rows == 1 else MANY
    return (-(-width // (4 * block)), low.rows), block


def embed(low: Lowering, op: Embed) -> bool:
    placed = low.shared.weights.matrix(op.weight)
    layout, width = placed.layout, low.width(op.target)
    is_float = layout.type in FLOATS
    weight = placed.raw if is_float else placed.codes
    groups = -(-width // GROUP)
    args = Embedding(
        weight,
        low.row(op.target),
        low.pointers(),
        low.faults(op.node),
        width,
        groups,
    )
    grid, block = across(low, width) if is_float else ((-(-groups // 8), low.rows), MANY)
    low.launch(f"embed_{layout.type.name.lower()}", grid, block, args, served=(layout.type.name,))
    return True


def head_norm(low: Lowering, op: HeadNorm) -> bool:
    args = NormOfHeads(
        low.row(op.source),
        low.norm_weight(op.weight),
        low.row(op.target),
        low.pointers(),
        low.faults(op.node),
        op.heads,
        op.head_dim,
        inverse_of(op.head_dim),
        op.eps,
    )
    low.launch("head_norm", (-(-op.heads // 4), low.rows), 128, args)
    return True


def rope(low: Lowering, op: Rope) -> bool:
    spec = low.shared.graph.ropes[op.table]
    args = Rotation(
        low.row(op.source),
        low.shared.tables[op.table],
        low.row(op.target),
        low.pointers(),
        low.faults(op.node),
        op.heads,
        op.head_dim,
        spec.rotated,
    )
    block = ALONE if low.rows == 1 else MANY
    grid = (-(-op.heads * op.head_dim // (2 * block)), low.rows)
    halves = spec.pairing is Pairing.HALF_SPLIT
    low.launch("rope_half_split" if halves else "rope_interleaved", grid, block, args)
    return True


def normed_turned_heads(
    low: Lowering, nq: HeadNorm, nk: HeadNorm, rq: Rope, rk: Rope, append: KvAppend
) -> bool:
    return _heads(low, (nq, nk), (rq, rk), append)


def normed_heads(low: Lowering, nq: HeadNorm, nk: HeadNorm, append: KvAppend) -> bool:
    return _heads(low, (nq, nk), (), append)


def turned_heads(low: Lowering, rq: Rope, rk: Rope, append: KvAppend) -> bool:
    return _heads(low, (), (rq, rk), append)


def _heads(
    low: Lowering, norms: tuple[HeadNorm, ...], ropes: tuple[Rope, ...], append: KvAppend
) -> bool:
    """Norm and rotation of q and of k, each where there is one, and k and v into the cache."""
    every: tuple[HeadNorm | Rope, ...] = (*norms, *ropes)
    q, k = every[:2]
    if q.head_dim > MOST_HEAD or k.target != append.key:
        return False
    if any(op.source != op.target for op in every):
        return False
    if norms and (norms[0].eps != norms[1].eps):
        return False
    if ropes and (ropes[0].table != ropes[1].table or ropes[0].target != q.target):
        return False
    if ropes and ropes[1].target != k.target:
        return False
    cache = low.shared.arena.caches[append.layer]
    spec = low.shared.graph.ropes[ropes[0].table] if ropes else None
    args = Heads(
        q=low.row(q.target),
        k=low.row(k.target),
        v=low.row(append.value),
        q_weight=low.norm_weight(norms[0].weight) if norms else 0,
        k_weight=low.norm_weight(norms[1].weight) if norms else 0,
        table=low.shared.tables[ropes[0].table] if ropes else 0,
        q_out=low.row(q.target),
        k_cache=cache.key,
        v_cache=cache.value,
        v_steps=cache.steps,
        step=low.pointers(),
        faults=low.faults(*(op.node for op in every), append.node),
        heads=q.heads,
        kv_heads=k.heads,
        head_dim=q.head_dim,
        capacity=cache.geometry.capacity,
        normed=int(bool(norms)),
        rotated=0 if spec is None else spec.rotated,
        halves=int(spec is not None and spec.pairing is Pairing.HALF_SPLIT),
        inverse=inverse_of(q.head_dim),
        eps=norms[0].eps if norms else 0.0,
    )
    grid = (-(-(q.heads + 2 * k.heads) // 4), low.rows)
    low.launch("heads", grid, 128, args, served=("KV",))
    return True


def _elementwise(
    low: Lowering,
    name: str,
    nodes: tuple[str, ...],
    x: str,
    y: str,
    out: str,
    *,
    factor: float = 0.0,
    inverse: float = 0.0,
    scale: float = 0.0,
) -> bool:
    width = low.width(out)
    args = Elementwise(
        low.row(x),
        low.row(y),
        low.row(out),
        low.pointers(),
        low.faults(*nodes),
        width,
        factor,
        inverse,
        scale,
    )
    grid, block = across(low, width)
    low.launch(name, grid, block, args)
    return True


def sigmoid_gate(low: Lowering, op: SigmoidGate) -> bool:
    return _elementwise(low, "sigmoid_gate", (op.node,), op.source, op.gate, op.target)


def gated_act(low: Lowering, op: GatedAct) -> bool:
    name = "silu_gate" if op.activation is Activation.SILU else "gelu_gate"
    return _elementwise(low, name, (op.node,), op.gate, op.up, op.target)


def add(low: Lowering, op: Add) -> bool:
    return _elementwise(low, "add", (op.node,), op.left, op.right, op.target)


def scale(low: Lowering, op: Scale) -> bool:
    return _elementwise(low, "scale", (op.node,), op.source, op.source, op.target, factor=op.factor)


def softcap(low: Lowering, op: Softcap) -> bool:
    names = (op.source, op.source, op.target)
    inverse = inverse_of(op.cap)
    return _elementwise(low, "softcap", (op.node,), *names, factor=op.cap, inverse=inverse)


def scale_softcap(low: Lowering, first: Scale, op: Softcap) -> bool:
    if not first.target == op.source == op.target:
        return False
    return _elementwise(
        low,
        "scale_softcap",
        (first.node, op.node),
        first.source,
        first.source,
        op.target,
        factor=op.cap,
        inverse=inverse_of(op.cap),
        scale=first.factor,
    )


def take_rows(low: Lowering, op: TakeRows) -> bool:
    for name in op.rows:
        width = low.width(name)
        block = MANY
        args = Taking(low.row(name), low.pointers(), width)
        low.entry_of(op.node)
        low.launch("take_rows", (-(-width // (4 * block)),), block, args)
    return True


def key_room(width: int, rows: int) -> Mapping[str, int]:
    """The best key of each part of some rows of logits (`pick.cuh`)."""
    return {"keys": 8 * _parts(width) * rows}


def _parts(width: int) -> int:
    return min(MOST_PARTS, -(-width // KEYS))


def first_token(low: Lowering, source: str) -> None:
    """The first token in token order of every row, to where the step's answers go back from."""
    width = low.width(source)
    parts = _parts(width)
    (keys,) = low.shared.rooms(key_room(width, low.rows))
    low.entry_of("first token")
    args = ArgmaxParts(low.row(source), keys, low.pointers(), width)
    low.launch("argmax_parts", (parts, low.rows), MANY, args)
    low.entry_of("first token")
    chosen = FirstOfParts(keys, low.step.ids, low.pointers(), parts)
    low.launch("argmax", (low.rows,), 32, chosen)
