"""What a model will take of a card, and its rotation tables there."""

from collections.abc import Mapping

import numpy as np

from muser.devices.cuda.arena import F32, block_rows, cache_bytes, row_counts
from muser.devices.cuda.card import Address
from muser.devices.cuda.memory import Memory, Plan, padded
from muser.devices.cuda.pinned import Pinned
from muser.devices.cuda.placing import WeightSource, staging_bytes, weight_bytes
from muser.devices.cuda.stepping import FAULT_BYTES, block_bytes
from muser.devices.device import Limits
from muser.graph import Graph, rope_table


def plan_of(
    graph: Graph, weights: WeightSource, limits: Limits, scratch: Mapping[str, int]
) -> Plan:
    """Bytes by what they are for: all that a runner ever takes. `scratch`: see `scratch_of`."""
    counts = row_counts(graph, limits)
    rows = sum(padded(F32 * counts[name] * width) for name, width in graph.rows.items())
    caches = sum(
        2 * plane + steps for plane, steps in (cache_bytes(c, limits) for c in graph.caches)
    )
    tables = sum(padded(F32 * limits.context * rope.rotated) for rope in graph.ropes.values())
    blocks = (rows for counts in block_rows(limits) for rows in counts.values())
    step = sum(padded(block_bytes(rows)) for rows in blocks)
    return Plan(
        {
            "weights": weight_bytes(graph, weights),
            "staging": staging_bytes(graph, weights),
            "caches": caches,
            "rows": rows,
            "tables": tables,
            "step": step + padded(FAULT_BYTES),
            "scratch": sum(map(padded, scratch.values())),
        }
    )


def rope_tables(
    pinned: Pinned, memory: Memory, graph: Graph, weights: WeightSource, context: int
) -> Mapping[str, Address]:
    """Table name to f32 `[context, rotated]` on the card."""
    found = {}
    for name, spec in graph.ropes.items():
        factors = None if spec.factors is None else weights.vector(spec.factors)
        table = np.ascontiguousarray(rope_table(spec, context, factors), np.float32)
        found[name] = memory.take("tables", table.nbytes)
        pinned.up(found[name], table)
    return found
