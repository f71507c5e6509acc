"""What a model takes of the host's memory beside its weights."""

import os

from muser.devices.device import Limits
from muser.errors import LimitError
from muser.graph import Graph
from muser.kv import Geometry


def needed_bytes(graph: Graph, limits: Limits) -> int:
    """What a model takes beside its weights: f16 caches, f32 rows and rotation tables."""
    caches = sum(
        2
        * 2
        * spec.kv_heads
        * spec.head_dim
        * limits.slots
        * Geometry(spec.window, limits.context, limits.chunk).capacity
        for spec in graph.caches
    )
    rows = 4 * limits.chunk * sum(graph.rows.values())
    tables = sum(4 * limits.context * rope.rotated for rope in graph.ropes.values())
    return caches + rows + tables


def require_memory(graph: Graph, limits: Limits) -> None:
    """A system that hands out memory it does not have would kill the process later.

    Raises `LimitError` if a model takes more than the machine has.
    """
    if not hasattr(os, "sysconf"):
        return
    needed = needed_bytes(graph, limits)
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > have:
        raise LimitError(
            f"A context of {limits.context} tokens takes {needed / 1e9:.1f} GB of memory, this"
            f" machine has {have / 1e9:.1f} GB.",
            "Choose a smaller context.",
        )
