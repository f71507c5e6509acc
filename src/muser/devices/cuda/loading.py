"""A model onto a card: what it takes is summed up, compared with what is free, and then taken."""

from muser.devices.cuda.arena import Arena
from muser.devices.cuda.card import Card
from muser.devices.cuda.chunked import WIDE_KERNEL
from muser.devices.cuda.lowering import Shared
from muser.devices.cuda.memory import Memory
from muser.devices.cuda.pinned import Pinned
from muser.devices.cuda.pipelines import Pipelines
from muser.devices.cuda.placing import WeightSource, place_weights
from muser.devices.cuda.planning import plan_of, rope_tables
from muser.devices.cuda.scratch import Extent, scratch_of
from muser.devices.device import Limits
from muser.errors import LimitError
from muser.graph import Graph
from muser.kernels import CudaLibrary

MOST_ROWS = 65_535  # of a launch: CUDA's limit for a grid's second and third size


def shared_of(
    card: Card, library: CudaLibrary, graph: Graph, weights: WeightSource, limits: Limits
) -> Shared:
    """All that the buckets of a runner share. Raises `LimitError` before anything is taken for what
    does not fit, and `ModelError` for weights that are not finite.
    """
    if limits.chunk > MOST_ROWS:
        raise LimitError(
            f"A chunk of {limits.chunk:,} tokens is more than the {MOST_ROWS:,} that a card takes.",
            "Ask for a smaller chunk.",
        )
    memory, pipelines = Memory(card), Pipelines(card, library)
    extent = Extent(limits, card.facts.processors, pipelines.has(WIDE_KERNEL))
    scratch = scratch_of(graph, weights, extent)
    plan_of(graph, weights, limits, scratch).check(card)
    pinned = Pinned(card)
    return Shared(
        card,
        pinned,
        memory,
        pipelines,
        graph,
        limits,
        place_weights(card, pinned, pipelines, memory, graph, weights),
        Arena.make(card, memory, graph, limits),
        rope_tables(pinned, memory, graph, weights, limits.context),
        memory.rooms("scratch", scratch),
    )
