"""Rows and caches between the card and the host: what tests, proofs and packs look into."""

import numpy as np
from numpy.typing import NDArray

from muser.devices.cuda.card import Address, Shape
from muser.devices.cuda.lowering import Shared
from muser.devices.cuda.stepping import FAULT_BYTES, NO_FAULT, Faults
from muser.devices.cuda.structs import CopyRows
from muser.errors import ArithmeticFault

F16 = NDArray[np.float16]


class Moving:
    """Copies of a runner's rows and cached rows; the caller has the card to itself."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._card = shared, shared.card
        self._host = self._card.pinned(0)
        self._fault = shared.memory.take("step", FAULT_BYTES)

    def put(self, name: str, rows: NDArray[np.float32]) -> None:
        """The first rows called `name`, from f32 `[rows, width]`."""
        self._up(self._shared.arena.rows[name], np.ascontiguousarray(rows, np.float32))

    def get(self, name: str, count: int) -> NDArray[np.float32]:
        """The first `count` rows called `name`: f32 `[count, width]`."""
        width = self._shared.graph.rows[name]
        words = self._down(self._shared.arena.rows[name], 4 * count * width)
        return words.view(np.float32).reshape(count, width).copy()

    def export_rows(self, layer: int, slot: int, first: int, last: int) -> tuple[F16, F16]:
        """K and V of positions `first` to `last` − 1: f16 `[positions, kv heads, head_dim]`."""
        spec = self._shared.arena.caches[layer].spec
        shape = (last - first, spec.kv_heads, spec.head_dim)
        size = 2 * int(np.prod(shape))
        key, value = (self._shared.room(f"copied {name}", size) for name in "kv")
        self._copy("kv_export", layer, slot, first, last - first, (key, value))
        found = [self._down(where, size).view(np.float16).copy() for where in (key, value)]
        return found[0].reshape(shape), found[1].reshape(shape)

    def import_rows(self, layer: int, slot: int, first: int, keys: F16, values: F16) -> None:
        """The inverse. Raises `ArithmeticFault` for rows that are not finite."""
        places = [self._shared.room(f"copied {name}", keys.nbytes) for name in "kv"]
        for where, rows in zip(places, (keys, values), strict=True):
            self._up(where, np.ascontiguousarray(rows, np.float16))
        self._copy("kv_import", layer, slot, first, len(keys), (places[0], places[1]))

    def _copy(
        self,
        kernel: str,
        layer: int,
        slot: int,
        first: int,
        count: int,
        rows: tuple[Address, Address],
    ) -> None:
        cache = self._shared.arena.caches[layer]
        self._card.fill(self._fault, FAULT_BYTES, 0xFF)
        args = CopyRows(
            *rows,
            cache.key,
            cache.value,
            cache.steps,
            Faults(self._fault, 0),
            cache.spec.kv_heads,
            cache.spec.head_dim,
            cache.geometry.capacity,
            slot,
            first,
            count,
        )
        shape = Shape((count, cache.spec.kv_heads, 1), 64)
        self._card.launch(self._shared.pipelines.kernel(kernel, 0), shape, args)
        if int(self._down(self._fault, FAULT_BYTES).view(np.uint64)[0]) != NO_FAULT:
            raise ArithmeticFault(
                f"A row of K or V for layer {layer} is not finite.",
                "The rows come from another model, or are damaged.",
            )

    def _up(self, where: Address, rows: NDArray[np.generic]) -> None:
        host = self._pinned(rows.nbytes)
        host[:] = rows.reshape(-1).view(np.uint8)
        self._card.upload(where, host)
        self._card.wait()

    def _down(self, where: Address, size: int) -> NDArray[np.uint8]:
        host = self._pinned(size)
        self._card.download(host, where)
        self._card.wait()
        return host

    def _pinned(self, size: int) -> NDArray[np.uint8]:
        if size > self._host.size:
            self._host = self._card.pinned(size)
        return self._host[:size]
