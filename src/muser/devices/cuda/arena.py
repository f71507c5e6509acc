"""The CUDA runner's memory beside the weights: rows by name, caches, a step block a bucket."""

from collections.abc import Mapping
from dataclasses import dataclass

from muser.devices.cuda.buckets import buckets_of, head_rows, rows_of
from muser.devices.cuda.card import Address, Card
from muser.devices.cuda.memory import Memory, padded
from muser.devices.cuda.stepping import StepBlock
from muser.devices.device import Limits
from muser.graph import CacheSpec, Graph, Project, TakeRows
from muser.kv import TILE, Geometry

F32, F16 = 4, 2


@dataclass(frozen=True, slots=True)
class CachePlane:
    """One layer's K and V: f16 `[slots, kv heads, capacity, head_dim]`, zeros at first.

    `steps`: int8 `[slots, kv heads, capacity]`, of the V rows.
    """

    spec: CacheSpec
    geometry: Geometry
    key: Address
    value: Address
    steps: Address


@dataclass(frozen=True, slots=True)
class Arena:
    """`rows`: name to f32 `[rows, width]`. `steps` and `tails`: bucket to the step block of its
    body and of its tail.
    """

    rows: Mapping[str, Address]
    caches: tuple[CachePlane, ...]
    steps: Mapping[str, StepBlock]
    tails: Mapping[str, StepBlock]

    @classmethod
    def make(cls, card: Card, memory: Memory, graph: Graph, limits: Limits) -> "Arena":
        rows = {
            name: memory.take("rows", F32 * count * graph.rows[name])
            for name, count in row_counts(graph, limits).items()
        }
        caches = tuple(_cache(memory, spec, limits) for spec in graph.caches)
        steps, tails = (
            {bucket: StepBlock.make(card, memory, count) for bucket, count in counts.items()}
            for counts in block_rows(limits)
        )
        return cls(rows, caches, steps, tails)


def block_rows(limits: Limits) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Bucket to the most rows of its body, and of its tail."""
    body = {bucket: rows_of(bucket, limits) for bucket in buckets_of(limits.chunk)}
    most = head_rows(limits)
    tail = {bucket: min(rows_of(bucket, limits), most) for bucket in buckets_of(most)}
    return body, tail


def row_counts(graph: Graph, limits: Limits) -> Mapping[str, int]:
    """Row name to how many of it there can be: logits exist for wanted rows alone."""
    taken, after = False, set[str]()
    before = set[str]()
    for op in graph.ops:
        taken = taken or isinstance(op, TakeRows)
        targets = op.targets if isinstance(op, Project) else (getattr(op, "target", ""),)
        (after if taken else before).update(targets)
    late = after - before
    return {name: head_rows(limits) if name in late else limits.chunk for name in graph.rows}


def tiles_of(spec: CacheSpec, limits: Limits) -> int:
    """The most tiles of attention that hold rows which one query sees."""
    most = -(-limits.context // TILE)
    return most if spec.window is None else min(most, (spec.window + TILE - 2) // TILE + 1)


def cache_bytes(spec: CacheSpec, limits: Limits) -> tuple[int, int]:
    """Of K (and of V), and of the steps of V."""
    capacity = Geometry(spec.window, limits.context, limits.chunk).capacity
    rows = limits.slots * spec.kv_heads * capacity
    return padded(F16 * rows * spec.head_dim), padded(rows)


def _cache(memory: Memory, spec: CacheSpec, limits: Limits) -> CachePlane:
    plane, steps = cache_bytes(spec, limits)
    geometry = Geometry(spec.window, limits.context, limits.chunk)
    key, value = (memory.take("caches", plane) for _ in range(2))
    return CachePlane(spec, geometry, key, value, memory.take("caches", steps))
