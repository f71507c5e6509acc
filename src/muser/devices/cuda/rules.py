"""From operators to launches: a table of patterns, the longest match first, no entry an error.

A fused pattern has the unfused sequence as its oracle, and is taken only where nothing else could
see the rows between.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from types import MappingProxyType

from muser.devices.cuda import attending, chunked, norms, rowwise
from muser.devices.cuda.buckets import FEW
from muser.devices.cuda.lowering import Lowering
from muser.devices.cuda.projecting import After, few_rows
from muser.devices.cuda.sources import Before, fits
from muser.errors import DeviceError
from muser.graph import (
    Add,
    Argmax,
    Attention,
    Embed,
    GatedAct,
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
    writes_of,
)


def lower(low: Lowering, ops: tuple[Op, ...], later: tuple[Op, ...]) -> None:
    """Appends the launches of `ops`, behind which `later` will be played.

    Raises `DeviceError` for an operator without a rule.
    """
    at = 0
    while at < len(ops):
        at += _lower_at(low, ops, at, later)


def logits_row(ops: tuple[Op, ...]) -> str:
    """The rows that a graph ends with; none (an empty name) where it only fills caches."""
    return next((name for op in reversed(ops) for name in reversed(writes_of(op))), "")


def _lower_at(low: Lowering, ops: tuple[Op, ...], at: int, later: tuple[Op, ...]) -> int:
    for length in range(LONGEST, 0, -1):
        some = ops[at : at + length]
        rule = PATTERNS.get(tuple(type(op) for op in some))
        if rule is None:
            continue
        low.behind = (*ops[at + length :], *later)
        if rule(low, *some):
            return length
    raise DeviceError(
        f"The CUDA device has no pipeline for {type(ops[at]).__name__} ({ops[at]}).",
        "Use --device cpu.",
    )


def _project(low: Lowering, *ops: Op) -> bool:
    """A projection and what stands around it."""
    at = next(i for i, op in enumerate(ops) if isinstance(op, Project))
    front, op, behind = ops[:at], ops[at], ops[at + 1 :]
    assert isinstance(op, Project)
    if low.bucket not in FEW:
        return _many_rows(low, op, _before(front), _after(behind))
    before, after = _before(front), _after(behind)
    if not _begins(low, op, before) or not _ends(low, op, after):
        return False
    if before.add is not None and not low.may_swap(before.add.target):
        return False
    few_rows(low, op, before, after)
    return True


def _many_rows(low: Lowering, op: Project, before: Before, after: After) -> bool:
    if after.scale is not None or after.cap is not None:
        return False
    if before.norm is not None and not (
        _begins(low, op, before) and chunked.norms(low, op, before)
    ):
        return False
    if after.gate is not None and not (_ends(low, op, after) and chunked.gates(low, op)):
        return False
    chunked.many_rows(low, op, before, after.gate)
    return True


def _gated_rows(low: Lowering, gate: GatedAct, op: Project) -> bool:
    """A gated activation that only the projection behind it reads."""
    if low.bucket in FEW or gate.target != op.source or not low.is_unseen(op.source):
        return False
    if not chunked.has_one_form(low, op):
        return False
    chunked.many_rows(low, op, gate)
    return True


def _begins(low: Lowering, op: Project, before: Before) -> bool:
    """Whether what stands in front makes the projection's rows, and nothing else sees them."""
    add = before.add
    if not fits(before, op.source) or (before.norm is not None and not low.is_unseen(op.source)):
        return False
    return add is None or add.left == add.target or low.is_unseen(add.left)


def _before(ops: tuple[Op, ...]) -> Before:
    norms = [op for op in ops if isinstance(op, RmsNorm)]
    add = next((op for op in ops if isinstance(op, Add)), None)
    take = next((op for op in ops if isinstance(op, TakeRows)), None)
    branch = norms[0] if len(norms) == 2 else None
    return Before(branch, take, add, norms[-1] if norms else None)


def _after(ops: tuple[Op, ...]) -> After:
    gate = next((op for op in ops if isinstance(op, GatedAct)), None)
    scale = next((op for op in ops if isinstance(op, Scale)), None)
    cap = next((op for op in ops if isinstance(op, Softcap)), None)
    return After(gate, scale, cap)


def _ends(low: Lowering, op: Project, after: After) -> bool:
    """Whether what follows takes the projection's own rows, and nothing else sees them."""
    gate = after.gate
    if gate is not None:
        pair = (gate.gate, gate.up)
        unseen = all(name == gate.target or low.is_unseen(name) for name in pair)
        return op.targets == pair and low.alike(op.weights) and unseen
    chain = [one for one in (after.scale, after.cap) if one is not None]
    return all(len(op.targets) == 1 and one.source == one.target == op.targets[0] for one in chain)


FRONTS: tuple[tuple[type[Op], ...], ...] = (
    (),
    (RmsNorm,),
    (Add, RmsNorm),
    (RmsNorm, Add, RmsNorm),
    (TakeRows, Add, RmsNorm),
)
BEHINDS: tuple[tuple[type[Op], ...], ...] = (
    (),
    (GatedAct,),
    (Scale,),
    (Softcap,),
    (Scale, Softcap),
)
Rule = Callable[..., bool]


def _around() -> Iterator[tuple[tuple[type[Op], ...], Rule]]:
    for front, behind in product(FRONTS, BEHINDS):
        yield (*front, Project, *behind), _project


PATTERNS: Mapping[tuple[type[Op], ...], Rule] = MappingProxyType(
    {
        **dict(_around()),
        (HeadNorm, HeadNorm, Rope, Rope, KvAppend): rowwise.normed_turned_heads,
        (HeadNorm, HeadNorm, KvAppend): rowwise.normed_heads,
        (Rope, Rope, KvAppend): rowwise.turned_heads,
        (RmsNorm, Add, RmsNorm): norms.norm_add_norm,
        (Add, RmsNorm): norms.add_norm,
        (Attention, SigmoidGate): attending.gated_attention,
        (Scale, Softcap): rowwise.scale_softcap,
        (Embed,): rowwise.embed,
        (RmsNorm,): norms.norm,
        (HeadNorm,): rowwise.head_norm,
        (Rope,): rowwise.rope,
        (KvAppend,): attending.kv_append,
        (Attention,): attending.attention,
        (SigmoidGate,): rowwise.sigmoid_gate,
        (GatedAct, Project): _gated_rows,
        (GatedAct,): rowwise.gated_act,
        (Add,): rowwise.add,
        (Scale,): rowwise.scale,
        (Softcap,): rowwise.softcap,
        (TakeRows,): rowwise.take_rows,
        (Argmax,): lambda low, op: True,  # the first token is every tail's last launch
    }
)
"""Kinds in a row to the rule that lowers them; a rule answers False where it does not fit."""
LONGEST = max(map(len, PATTERNS))
