"""Rows and caches between the card and the host: what tests, proofs and packs look into.

Everything goes piece by piece through places that are here since the loading: `PIECE` bytes of
pinned memory, and on the card at most as much for K and for V, or one row.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from muser.devices.cuda.arena import F16
from muser.devices.cuda.card import Address, Shape
from muser.devices.cuda.lowering import Shared
from muser.devices.cuda.pinned import PIECE
from muser.devices.cuda.stepping import FAULT_BYTES, NO_FAULT, Faults
from muser.devices.cuda.structs import CopyRows
from muser.devices.device import Limits
from muser.errors import ArithmeticFault
from muser.graph import CacheSpec

Halves = NDArray[np.float16]


def copied_rooms(spec: CacheSpec, limits: Limits) -> Mapping[str, int]:
    """For K and V on their way in and out of a layer's cache."""
    size = _row_bytes(spec) * _at_once(spec, limits)
    return {"copied k": size, "copied v": size}


def _row_bytes(spec: CacheSpec) -> int:
    return F16 * spec.kv_heads * spec.head_dim


def _at_once(spec: CacheSpec, limits: Limits) -> int:
    """Positions whose K and V are under way at once."""
    return max(1, min(PIECE // _row_bytes(spec), limits.context))


class Moving:
    """Copies of a runner's rows and cached rows; the caller has the card to itself."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._card = shared, shared.card
        self._pinned = shared.pinned
        self._fault = shared.memory.take("step", FAULT_BYTES)

    def put(self, name: str, rows: NDArray[np.float32]) -> None:
        """The first rows called `name`, from f32 `[rows, width]`."""
        self._pinned.up(self._shared.arena.rows[name], np.ascontiguousarray(rows, np.float32))

    def get(self, name: str, count: int) -> NDArray[np.float32]:
        """The first `count` rows called `name`: f32 `[count, width]`."""
        width = self._shared.graph.rows[name]
        found = np.empty((count, width), np.float32)
        self._pinned.down(found, self._shared.arena.rows[name])
        return found

    def export_rows(self, layer: int, slot: int, first: int, last: int) -> tuple[Halves, Halves]:
        """K and V of positions `first` to `last` − 1: f16 `[positions, kv heads, head_dim]`."""
        spec = self._shared.arena.caches[layer].spec
        shape = (last - first, spec.kv_heads, spec.head_dim)
        keys, values = np.empty(shape, np.float16), np.empty(shape, np.float16)
        for part, rooms in self._parts(spec, len(keys)):
            self._copy("kv_export", layer, slot, first, part, rooms)
            for rows, where in zip((keys, values), rooms, strict=True):
                self._pinned.down(rows[part.start : part.stop], where)
        return keys, values

    def import_rows(self, layer: int, slot: int, first: int, keys: Halves, values: Halves) -> None:
        """The inverse. Raises `ArithmeticFault` for rows that are not finite."""
        spec = self._shared.arena.caches[layer].spec
        for part, rooms in self._parts(spec, len(keys)):
            for rows, where in zip((keys, values), rooms, strict=True):
                some = rows[part.start : part.stop]
                self._pinned.up(where, np.ascontiguousarray(some, np.float16))
            self._copy("kv_import", layer, slot, first, part, rooms)

    def _parts(self, spec: CacheSpec, count: int) -> Iterator[tuple[range, tuple[Address, ...]]]:
        """Runs of positions that are copied at once, and where their K and V stand meanwhile."""
        limits = self._shared.limits
        rooms, step = self._shared.rooms(copied_rooms(spec, limits)), _at_once(spec, limits)
        for start in range(0, count, step):
            yield range(start, min(start + step, count)), rooms

    def _copy(
        self,
        kernel: str,
        layer: int,
        slot: int,
        first: int,
        part: range,
        rooms: tuple[Address, ...],
    ) -> None:
        cache = self._shared.arena.caches[layer]
        self._card.fill(self._fault, FAULT_BYTES, 0xFF)
        args = CopyRows(
            *rooms,
            cache.key,
            cache.value,
            cache.steps,
            Faults(self._fault, 0),
            cache.spec.kv_heads,
            cache.spec.head_dim,
            cache.geometry.capacity,
            slot,
            first + part.start,
            len(part),
        )
        shape = Shape((len(part), cache.spec.kv_heads, 1), 64)
        self._card.launch(self._shared.pipelines.kernel(kernel, 0), shape, args)
        fault = np.empty(1, np.uint64)
        self._pinned.down(fault, self._fault)
        if int(fault[0]) != NO_FAULT:
            raise ArithmeticFault(
                f"A row of K or V for layer {layer} is not finite.",
                "The rows come from another model, or are damaged.",
            )
