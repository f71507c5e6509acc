"""What the lowering rules share: arguments, weights bound once, quantised rows made once."""

import ctypes
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muser.devices.cpu.arena import Arena, Quantised, quantised_name
from muser.devices.cpu.moves import Move
from muser.errors import DeviceError
from muser.formats import FLOATS, READABLE, BlockType
from muser.graph import Graph, rope_table
from muser.graph.arithmetic import GRID_BLOCK
from muser.kernels import Args, Constants, address
from muser.weights import BoundTensor, Packed, PackSource

QUANTISERS = MappingProxyType({32: "quantise_32", 256: "quantise_256", GRID_BLOCK: "grid_rows"})
"""Elements that share a scale to the kernel that makes such rows."""


class WeightSource(PackSource, Protocol):
    """What a runner asks of `muser.weights.Weights`."""

    def vector(self, name: str) -> NDArray[np.float32]: ...


def block_size(kind: BlockType) -> int:
    """Elements that share a scale in a row multiplied by such weights."""
    if kind not in READABLE:
        raise DeviceError(
            f"The CPU device has no projection for {kind.name} weights.",
            f"Supported: {', '.join(sorted(known.name for known in READABLE))}.",
        )
    return GRID_BLOCK if kind in FLOATS else kind.elements


class Lowering:
    """Turns a graph into moves. `keep` holds every array that an argument points to."""

    def __init__(
        self,
        graph: Graph,
        weights: WeightSource,
        arena: Arena,
        context: int,
        constants: Constants,
        packed: Packed,
    ) -> None:
        self.graph, self.weights, self.arena, self.context = graph, weights, arena, context
        self.constants = constants
        self.packed = packed
        self.moves: list[Move] = []
        self.keep: list[object] = [arena, weights]
        self._count = "n"
        self._held: dict[int, str] = {}  # block size to the row that its scratch holds
        self._grids: dict[str, tuple[int, int]] = {}
        self._vectors: dict[str, int] = {}
        self._tables: dict[str, int] = {}

    def args(self, **fields: int | float) -> Args:
        step = self.arena.step
        fixed = {
            "step": ctypes.addressof(step.block),
            "rows": step.count_address(self._count),
        }
        return Args(**fixed, **fields)

    def row(self, name: str) -> int:
        return address(self.arena.rows[name])

    def width(self, name: str) -> int:
        return self.graph.rows[name]

    def add(
        self,
        kernel: str,
        args: Args,
        node: str,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        by_row: bool = True,
        columns: int | None = None,
        tensor_type: str | None = None,
        tensors: tuple[str, ...] = (),
    ) -> None:
        count = self._count if by_row else None
        self._forget(writes)
        touched = frozenset(reads), frozenset(writes)
        self.moves.append(Move(kernel, args, node, *touched, count, columns, tensor_type, tensors))

    def _forget(self, written: tuple[str, ...]) -> None:
        self._held = {b: row for b, row in self._held.items() if row not in written}

    def _kept(self, array: NDArray[np.generic]) -> int:
        self.keep.append(array)
        return address(array)

    def vector(self, name: str) -> int:
        if name not in self._vectors:
            self._vectors[name] = self._kept(self.weights.vector(name))
        return self._vectors[name]

    def weight_fields(self, tensor: BoundTensor) -> dict[str, int]:
        """Arguments for the weights of a projection: panels, a grid, or where they lie."""
        if self.constants.packed:
            return {"weight": address(self.packed[tensor.name])}
        if tensor.type in FLOATS:
            codes, steps = self.grid(tensor.name)
            return {"weight": codes, "steps": steps}
        return {"weight": address(tensor.raw), "row_bytes": tensor.row_bytes()}

    def grid(self, name: str) -> tuple[int, int]:
        if name not in self._grids:
            grid = self.weights.grid(name)
            self._grids[name] = self._kept(grid.codes), self._kept(grid.steps)
        return self._grids[name]

    def table(self, name: str) -> int:
        if name not in self._tables:
            spec = self.graph.ropes[name]
            factors = None if spec.factors is None else self.weights.vector(spec.factors)
            table = np.ascontiguousarray(rope_table(spec, self.context, factors), np.float32)
            self._tables[name] = self._kept(table)
        return self._tables[name]

    def take_count(self) -> None:
        """From here on rows are the wanted ones alone."""
        self._count = "m"
        self._held.clear()

    def quantise(self, source: str, kind: BlockType) -> tuple[Quantised, str]:
        """Scratch that holds `source` quantised as such weights need it, made once per row."""
        block = block_size(kind)
        scratch, name = self.arena.quantised[block], quantised_name(block)
        if self._held.get(block) != source:
            args = self.args(x=self.row(source), **self.quantised_fields(source, block))
            node = f"{source} in blocks of {block}"
            self.add(QUANTISERS[block], args, node, (source,), (name,))
            self._held[block] = source
        return scratch, name

    def quantised_fields(self, source: str, block: int) -> dict[str, int]:
        return {"width": self.width(source), **scratch_fields(self.arena.quantised[block])}

    def add_quantising(
        self,
        prefix: str,
        args: Args,
        node: str,
        source: str,
        block: int,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        tensor_type: str | None,
    ) -> None:
        """A move that makes the row `source`, among `writes`, and quantises it."""
        name = quantised_name(block)
        kernel = prefix + QUANTISERS[block]
        self.add(kernel, args, node, reads, (*writes, name), tensor_type=tensor_type)
        self._held[block] = source


def scratch_fields(scratch: Quantised) -> dict[str, int]:
    return {
        "codes": address(scratch.codes),
        "scales": address(scratch.scales),
        "sums": address(scratch.sums),
    }
