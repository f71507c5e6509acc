"""Geometry of K and V caches: integers only."""

from muser.kv.geometry import TILE, Geometry, round_up

__all__ = ["TILE", "Geometry", "round_up"]
