"""K and V rows of one layer in the CPU device's own layout, and f16 rows in and out of it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muser.graph import CacheSpec
from muser.graph.arithmetic import KV_GRID, grid_rows
from muser.kv import Geometry, round_up


@dataclass(frozen=True, slots=True)
class Plane:
    """Keys or values: `codes` int16 `[slots, kv heads, capacity, stride]`, `steps` int8 without
    the last axis. A row is codes·2^step, exactly an f16; codes behind head_dim stay zero."""

    codes: NDArray[np.int16]
    steps: NDArray[np.int8]

    @classmethod
    def empty(cls, spec: CacheSpec, geometry: Geometry, slots: int, lanes: int) -> "Plane":
        """`lanes`: the stride is a multiple of so many codes."""
        shape = (slots, spec.kv_heads, geometry.capacity)
        stride = round_up(spec.head_dim, lanes)
        return cls(np.zeros((*shape, stride), np.int16), np.zeros(shape, np.int8))

    def rows(self, slot: int, indices: NDArray[np.int64], head_dim: int) -> NDArray[np.float16]:
        """The stored rows as f16 `[rows, kv heads, head_dim]`."""
        codes = self.codes[slot][:, indices, :head_dim].astype(np.float32)
        steps = self.steps[slot][:, indices].astype(np.int32)
        values = np.ldexp(codes, steps[..., None]).astype(np.float16)
        return np.ascontiguousarray(values.transpose(1, 0, 2))

    def put(self, slot: int, indices: NDArray[np.int64], rows: NDArray[np.float16]) -> None:
        """Stores f16 rows `[rows, kv heads, head_dim]`, snapped to the grid (again harmless)."""
        codes, steps = grid_rows(rows.astype(np.float32), *KV_GRID)
        self.codes[slot][:, indices, : rows.shape[2]] = codes.transpose(1, 0, 2)
        self.steps[slot][:, indices] = steps.T


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer's planes and where a position stands in them."""

    spec: CacheSpec
    geometry: Geometry
    key: Plane
    value: Plane

    @classmethod
    def empty(cls, spec: CacheSpec, geometry: Geometry, slots: int, lanes: int) -> "Cache":
        key, value = (Plane.empty(spec, geometry, slots, lanes) for _ in range(2))
        return cls(spec, geometry, key, value)

    def export_rows(
        self, slot: int, first: int, last: int
    ) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """K and V of positions `first` to `last` − 1 as f16 `[positions, kv heads, head_dim]`."""
        where = np.arange(first, last, dtype=np.int64) % self.geometry.capacity
        dim = self.spec.head_dim
        return self.key.rows(slot, where, dim), self.value.rows(slot, where, dim)

    def import_rows(
        self, slot: int, first: int, keys: NDArray[np.float16], values: NDArray[np.float16]
    ) -> None:
        """The inverse of `export_rows`; rows off the grid are snapped to it."""
        where = np.arange(first, first + len(keys), dtype=np.int64) % self.geometry.capacity
        self.key.put(slot, where, keys)
        self.value.put(slot, where, values)
