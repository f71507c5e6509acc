"""K and V rows of one layer in the CPU device's own layout, and f16 rows in and out of it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muser.graph import CacheSpec
from muser.graph.arithmetic import KV_GRID, grid_rows
from muser.kernels import Constants, zeros
from muser.kv import Geometry, round_up


@dataclass(frozen=True, slots=True)
class Plane:
    """Keys or values: a row is codes·2^step, exactly an f16; codes behind head_dim stay zero.

    `codes` int16 `[slots, kv heads, capacity/G, stride/U, G, U]`: G positions lie side by side, U
    elements of each together (`cpu/kv.h`). `steps` int8 `[slots, kv heads, capacity]`.
    """

    codes: NDArray[np.int16]
    steps: NDArray[np.int8]

    @classmethod
    def empty(
        cls, spec: CacheSpec, capacity: int, slots: int, lanes: int, layout: tuple[int, int]
    ) -> "Plane":
        """`lanes`: the stride is a multiple of so many codes; `layout` is G and U."""
        group, unit = layout
        stride = round_up(spec.head_dim, lanes)
        shape = (slots, spec.kv_heads, capacity // group, stride // unit, group, unit)
        steps = np.zeros((slots, spec.kv_heads, capacity), np.int8)
        return cls(zeros(shape, np.int16), steps)

    def codes_of(self, slot: int, indices: NDArray[np.int64]) -> NDArray[np.int16]:
        """Rows as they were before they were laid side by side: `[kv heads, rows, stride]`."""
        group = self.codes.shape[4]
        found = self._by_row(slot)[:, indices // group, indices % group]
        return np.ascontiguousarray(found.reshape(*found.shape[:2], -1))

    def rows(self, slot: int, indices: NDArray[np.int64], head_dim: int) -> NDArray[np.float16]:
        """The stored rows as f16 `[rows, kv heads, head_dim]`."""
        codes = self.codes_of(slot, indices)[:, :, :head_dim].astype(np.float32)
        steps = self.steps[slot][:, indices].astype(np.int32)
        values = np.ldexp(codes, steps[..., None]).astype(np.float16)
        return np.ascontiguousarray(values.transpose(1, 0, 2))

    def put(self, slot: int, indices: NDArray[np.int64], rows: NDArray[np.float16]) -> None:
        """Stores f16 rows `[rows, kv heads, head_dim]`, snapped to the grid (again harmless)."""
        _, _, _, units, group, unit = self.codes.shape
        codes, steps = grid_rows(rows.astype(np.float32), *KV_GRID)
        padded = np.pad(codes, ((0, 0), (0, 0), (0, units * unit - rows.shape[2])))
        laid = padded.transpose(1, 0, 2).reshape(rows.shape[1], len(rows), units, unit)
        self._by_row(slot)[:, indices // group, indices % group] = laid
        self.steps[slot][:, indices] = steps.T

    def _by_row(self, slot: int) -> NDArray[np.int16]:
        """A view: `[kv heads, capacity/G, G, stride/U, U]`."""
        view: NDArray[np.int16] = self.codes[slot].transpose(0, 1, 3, 2, 4)
        return view


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer's planes and where a position stands in them."""

    spec: CacheSpec
    geometry: Geometry
    key: Plane
    value: Plane

    @classmethod
    def empty(
        cls, spec: CacheSpec, geometry: Geometry, slots: int, constants: Constants
    ) -> "Cache":
        layouts = (
            (constants.key_group, constants.key_unit),
            (constants.value_group, constants.value_unit),
        )
        key, value = (
            Plane.empty(spec, geometry.capacity, slots, constants.plane_lanes, layout)
            for layout in layouts
        )
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
