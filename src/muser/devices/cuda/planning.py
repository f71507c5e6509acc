"""What a model will take of a card, and its rotation tables there."""

from collections.abc import Mapping

import numpy as np

from muser.devices.cuda.arena import cache_bytes, row_counts
from muser.devices.cuda.card import Address, Card
from muser.devices.cuda.memory import Memory, Plan, padded
from muser.devices.cuda.placing import WeightSource, staging_bytes, weight_bytes
from muser.devices.device import Limits
from muser.graph import Graph, rope_table

F32 = 4


def plan_of(graph: Graph, weights: WeightSource, limits: Limits) -> Plan:
    """Bytes by what they are for.

    Scratch of attention and projections is not in it: a card keeps some room for that.
    """
    counts = row_counts(graph, limits)
    rows = sum(padded(F32 * counts[name] * width) for name, width in graph.rows.items())
    caches = sum(
        2 * plane + steps for plane, steps in (cache_bytes(c, limits) for c in graph.caches)
    )
    tables = sum(F32 * limits.context * rope.rotated for rope in graph.ropes.values())
    return Plan(
        {
            "weights": weight_bytes(graph, weights),
            "staging": staging_bytes(graph, weights),
            "caches": caches,
            "rows": rows,
            "tables": tables,
        }
    )


def rope_tables(
    card: Card, memory: Memory, graph: Graph, weights: WeightSource, context: int
) -> Mapping[str, Address]:
    """Table name to f32 `[context, rotated]` on the card."""
    found = {}
    for name, spec in graph.ropes.items():
        factors = None if spec.factors is None else weights.vector(spec.factors)
        table = np.ascontiguousarray(rope_table(spec, context, factors), np.float32)
        where = memory.take("tables", table.nbytes)
        host = card.pinned(table.nbytes)
        host[:] = table.reshape(-1).view(np.uint8)
        card.upload(where, host)
        found[name] = where
    card.wait()
    return found
