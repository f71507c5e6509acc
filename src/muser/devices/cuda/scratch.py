"""What launches of a step leave for later ones of the same step: all of it, before any is made.

Each rule has the formula of its own rooms; here it is asked for the largest step of each kind.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from muser.devices.cuda.attending import claims_room, pieces_room, tile_rooms
from muser.devices.cuda.buckets import CHUNK, MOST_FEW, buckets_of, head_rows
from muser.devices.cuda.chunked import band_room, carry_rooms
from muser.devices.cuda.lowering import spare_room
from muser.devices.cuda.moving import copied_rooms
from muser.devices.cuda.placing import WeightSource, layout_of
from muser.devices.cuda.projecting import code_rooms, handed_room
from muser.devices.cuda.rowwise import key_room
from muser.devices.cuda.rules import logits_row
from muser.devices.device import Limits
from muser.graph import Add, Attention, Graph, Op, Project, TakeRows

Rooms = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Extent:
    """What decides the sizes beside graph and weights.

    `is_wide`: whether a chunk's K-quants go through warpgroups.
    """

    limits: Limits
    processors: int
    is_wide: bool

    @property
    def few(self) -> int:
        """The most rows of a step of few."""
        return min(MOST_FEW, self.limits.chunk)

    @property
    def has_chunks(self) -> bool:
        return CHUNK in buckets_of(self.limits.chunk)


def scratch_of(graph: Graph, weights: WeightSource, extent: Extent) -> Rooms:
    """Name of a room to the most bytes that a launch of any bucket takes of it."""
    found: dict[str, int] = {}
    for rooms in _rooms(graph, weights, extent):
        for name, size in rooms.items():
            found[name] = max(found.get(name, 0), size)
    return found


def _rooms(graph: Graph, weights: WeightSource, extent: Extent) -> Iterator[Rooms]:
    for spec in graph.caches:
        yield copied_rooms(spec, extent.limits)
    for op in graph.ops:
        if isinstance(op, Project):
            yield from _projecting(graph, weights, extent, op)
        else:
            yield _of(graph, extent, op)


def _of(graph: Graph, extent: Extent, op: Op) -> Rooms:
    limits = extent.limits
    if isinstance(op, Attention):
        spec, rows = graph.caches[op.layer], extent.few
        width = op.heads * spec.head_dim
        return {
            **tile_rooms(spec, limits, op.heads, rows),
            **claims_room(op.heads),
            **pieces_room(width, rows),
        }
    if isinstance(op, Add):
        return spare_room(op.target, graph.rows[op.target], extent.few)
    if isinstance(op, TakeRows):
        return key_room(graph.rows[logits_row(graph.ops)], head_rows(limits))
    return {}


def _projecting(
    graph: Graph, weights: WeightSource, extent: Extent, op: Project
) -> Iterator[Rooms]:
    width = graph.rows[op.source]
    for block in {layout_of(weights.tensor(name)).block for name in op.weights}:
        yield code_rooms(width, block)
        yield handed_room(extent.processors)
        if extent.has_chunks:
            yield band_room(width, block, extent.limits.chunk)
            if extent.is_wide and block == 256:
                yield carry_rooms(extent.processors)
