"""The operator vocabulary: every model is a flat tuple of these records.

Sources and targets name f32 rows of an arena (`Graph.rows`: name to width); a row name may be
written again by a later operator. `node` is llama.cpp's name of the same tensor, so that a diff
against it is one command. An operator's meaning is `docs/arithmetic.md`; `oracle.py` is that text
in NumPy, and a device lowers the records to pipelines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Pairing(StrEnum):
    """Which two elements of a head rotate together."""

    INTERLEAVED = "interleaved"  # (2i, 2i+1)
    HALF_SPLIT = "half_split"  # (i, i + d/2)


class Activation(StrEnum):
    SILU = "silu"
    GELU = "gelu"


@dataclass(frozen=True, slots=True)
class Embed:
    """target = the file's values of row `token` of `weight`."""

    target: str
    weight: str
    node: str


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """target = source / rms(source), times `weight` unless it is None."""

    source: str
    target: str
    weight: str | None
    eps: float
    node: str


@dataclass(frozen=True, slots=True)
class Project:
    """targets[i] = weights[i] · source, for a group of weights that read one row."""

    source: str
    targets: tuple[str, ...]
    weights: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RmsNorm of each of `heads` stretches of `head_dim` elements, all with one `weight`."""

    source: str
    target: str
    weight: str | None
    heads: int
    head_dim: int
    eps: float
    node: str


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotate the first `spec.rotated` elements of each head by the row's position."""

    source: str
    target: str
    heads: int
    head_dim: int
    table: str
    node: str


@dataclass(frozen=True, slots=True)
class KvAppend:
    """Snap k and v to the grid and store them in cache `layer` at the row's position."""

    key: str
    value: str
    layer: int
    node: str


@dataclass(frozen=True, slots=True)
class Attention:
    """target = attention of `query` over cache `layer`; head h reads KV head h // (heads/kv)."""

    query: str
    target: str
    layer: int
    heads: int
    scale: float
    node: str


@dataclass(frozen=True, slots=True)
class SigmoidGate:
    """target = source · sigmoid(gate)."""

    source: str
    gate: str
    target: str
    node: str


@dataclass(frozen=True, slots=True)
class GatedAct:
    """target = activation(gate) · up."""

    gate: str
    up: str
    target: str
    activation: Activation
    node: str


@dataclass(frozen=True, slots=True)
class Add:
    left: str
    right: str
    target: str
    node: str


@dataclass(frozen=True, slots=True)
class Scale:
    source: str
    target: str
    factor: float
    node: str


@dataclass(frozen=True, slots=True)
class Softcap:
    source: str
    target: str
    cap: float
    node: str


@dataclass(frozen=True, slots=True)
class TakeRows:
    """Keep only the rows whose logits are wanted; later operators see those alone, in order."""

    rows: tuple[str, ...]
    node: str


@dataclass(frozen=True, slots=True)
class Argmax:
    """The id of the largest logit; equal logits go to the lower id."""

    source: str
    node: str


Op = (
    Embed
    | RmsNorm
    | Project
    | HeadNorm
    | Rope
    | KvAppend
    | Attention
    | SigmoidGate
    | GatedAct
    | Add
    | Scale
    | Softcap
    | TakeRows
    | Argmax
)


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One rotation table.

    `factors` names a tensor that divides the angles, if there is one; `scale`, at most 1,
    multiplies them (linear scaling).
    """

    rotated: int
    base: float
    pairing: Pairing
    factors: str | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """One layer's K and V rows. `window` None: every earlier row is visible."""

    kv_heads: int
    head_dim: int
    window: int | None


@dataclass(frozen=True, slots=True)
class UniformSpec:
    """Tensors that must hold one constant, `value` if given; otherwise the file is `otherwise`."""

    tensors: tuple[str, ...]
    value: float | None
    otherwise: str


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole model: operators in order of data flow, and what they read and write.

    `rows` maps a row name to its width in f32; `weights` a tensor name to its `[in, out]` or `[n]`
    shape in GGUF order; `ropes` a table name to its rule; `caches` has one entry a layer. `uniform`
    lists what the values of the file must satisfy for the graph to be the right one.
    """

    architecture: str
    ops: tuple[Op, ...]
    rows: Mapping[str, int]
    weights: Mapping[str, tuple[int, ...]]
    caches: tuple[CacheSpec, ...]
    ropes: Mapping[str, RopeSpec]
    vocabulary: int
    context: int
    uniform: tuple[UniformSpec, ...] = ()


def reads_of(op: Op) -> tuple[str, ...]:
    """The rows that an operator reads."""
    match op:
        case Embed():
            return ()
        case KvAppend():
            return (op.key, op.value)
        case Attention():
            return (op.query,)
        case SigmoidGate():
            return (op.source, op.gate)
        case GatedAct():
            return (op.gate, op.up)
        case Add():
            return (op.left, op.right)
        case TakeRows():
            return op.rows
    return (op.source,)


def writes_of(op: Op) -> tuple[str, ...]:
    """The rows that an operator writes."""
    match op:
        case Project():
            return op.targets
        case TakeRows():
            return op.rows
        case KvAppend() | Argmax():
            return ()
    return (op.target,)
