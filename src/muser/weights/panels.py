"""Weights turned into panels of sixteen outputs by a library's own code (`kernels/cpu/pack.h`)."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muser.errors import DeviceError
from muser.formats import FLOATS, BlockType
from muser.graph.arithmetic import GRID_BLOCK
from muser.kernels import Library, address
from muser.weights.bind import BoundTensor, GridTensor

AT_ONCE = 8 << 20  # bytes that are packed before they are handed on


class TensorSource(Protocol):
    """What packing asks of `Weights`."""

    def tensor(self, name: str) -> BoundTensor: ...
    def grid(self, name: str) -> GridTensor: ...


@dataclass(frozen=True, slots=True)
class Panels:
    """How one tensor lies when packed: `count` panels of `bytes_each`."""

    name: str
    type: str
    count: int
    bytes_each: int

    @property
    def size(self) -> int:
        return self.count * self.bytes_each

    @property
    def is_snapped(self) -> bool:
        """Whether these are float weights, put on their grid before they are packed."""
        return BlockType[self.type] in FLOATS


class Packer:
    """The packing functions of `library`, whose constants say `packed`."""

    def __init__(self, library: Library) -> None:
        assert library.constants.packed
        self.library = library.sha256
        self.lanes = library.constants.lanes
        number, size, where = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
        self._formats = library.formats
        self._rows = ctypes.CFUNCTYPE(number, number, where, size, number, number, where)(
            ("muser_pack", library.handle)
        )
        self._panel_bytes = ctypes.CFUNCTYPE(size, number, number)(
            ("muser_panel_bytes", library.handle)
        )
        self._grid = ctypes.CFUNCTYPE(None, where, where, number, number, where)(
            ("muser_pack_grid", library.handle)
        )

    def layout(self, tensor: BoundTensor) -> Panels:
        """The size of a tensor's panels; it is packed by nobody yet."""
        width, rows = tensor.shape
        kind = self._formats["GRID" if tensor.type in FLOATS else tensor.type.name]
        block = GRID_BLOCK if tensor.type in FLOATS else tensor.type.elements
        bytes_each = int(self._panel_bytes(kind, -(-width // block)))
        return Panels(tensor.name, tensor.type.name, -(-rows // self.lanes), bytes_each)

    def pieces(self, source: TensorSource, panels: Panels) -> Iterator[NDArray[np.uint8]]:
        """The packed bytes of a tensor in order, about `AT_ONCE` bytes at a time."""
        tensor = source.tensor(panels.name)
        grid = source.grid(panels.name) if tensor.type in FLOATS else None
        step = max(1, AT_ONCE // panels.bytes_each)
        for first in range(0, panels.count, step):
            count = min(step, panels.count - first)
            out = np.zeros(count * panels.bytes_each, np.uint8)
            rows = slice(first * self.lanes, min((first + count) * self.lanes, tensor.rows))
            if grid is None:
                self._pack_rows(tensor, rows, out)
            else:
                self._pack_grid(grid, rows, out)
            yield out

    def first(self, source: TensorSource, panels: Panels) -> NDArray[np.uint8] | None:
        """The first panel of a tensor; None for float weights, which are costly to snap again."""
        tensor = source.tensor(panels.name)
        if tensor.type in FLOATS:
            return None
        out = np.zeros(panels.bytes_each, np.uint8)
        self._pack_rows(tensor, slice(0, min(self.lanes, tensor.rows)), out)
        return out

    def _pack_rows(self, tensor: BoundTensor, rows: slice, out: NDArray[np.uint8]) -> None:
        stride = tensor.row_bytes()
        raw = tensor.raw[rows.start * stride : rows.stop * stride]
        blocks = tensor.shape[0] // tensor.type.elements
        kind = self._formats.get(tensor.type.name, -1)
        count = rows.stop - rows.start
        if self._rows(kind, address(raw), stride, count, blocks, address(out)):
            raise DeviceError(
                f"The kernels have no packed form of {tensor.type.name} weights.",
                "Set MUSER_ISA=avx2 or MUSER_ISA=c.",
            )

    def _pack_grid(self, grid: GridTensor, rows: slice, out: NDArray[np.uint8]) -> None:
        codes, steps = grid.codes[rows], grid.steps[rows]
        self._grid(address(codes), address(steps), len(codes), codes.shape[1], address(out))
