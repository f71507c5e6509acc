"""Geometry of K and V caches: integers only."""

from muser.graph.arithmetic import TILE
from muser.kv.geometry import Geometry, round_up

__all__ = ["TILE", "Geometry", "round_up"]
