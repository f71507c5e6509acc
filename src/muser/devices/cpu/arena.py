"""The CPU runner's memory: named rows, quantised rows, step data, caches."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muser.devices.cpu.planes import Cache
from muser.devices.device import Limits, Step
from muser.graph import Graph
from muser.kernels import Constants, StepBlock, address, zeros
from muser.kv import Geometry, round_up


@dataclass(frozen=True, slots=True)
class Quantised:
    """Scratch for `rows` quantised rows of one block size; the layouts are in `cpu/rows.h`."""

    rows: int
    codes: NDArray[np.int16]
    scales: NDArray[np.float32]
    sums: NDArray[np.int16]

    @classmethod
    def empty(cls, rows: int, width: int, block: int, constants: Constants) -> "Quantised":
        padded, span = round_up(rows, constants.row_tile), round_up(width, block)
        sums = constants.sum_words * (span // constants.code_group)
        return cls(
            padded,
            zeros(padded * span, np.int16),
            zeros(padded * (span // block), np.float32),
            zeros(padded * sums, np.int16),
        )


def quantised_name(block: int) -> str:
    """What moves call the scratch of a block size."""
    return f"quantised {block}"


class StepData:
    """The block that tape entries point to, and the arrays it points to."""

    def __init__(self, chunk: int) -> None:
        self.arrays = {
            name: np.zeros(chunk, np.int32) for name in ("tokens", "positions", "slots", "outputs")
        }
        self.block = StepBlock(0, 0, *(address(array) for array in self.arrays.values()))

    def count_address(self, name: str) -> int:
        """Where the row count `n` or `m` stands."""
        return ctypes.addressof(self.block) + int(getattr(StepBlock, name).offset)

    def write(self, step: Step) -> None:
        self.block.n, self.block.m = len(step.tokens), len(step.outputs)
        for name, array in self.arrays.items():
            values = getattr(step, name)
            array[: len(values)] = values


@dataclass(frozen=True, slots=True)
class Arena:
    """`rows` f32 `[chunk, width]` by name; `quantised` by block size; one cache a layer."""

    rows: Mapping[str, NDArray[np.float32]]
    quantised: Mapping[int, Quantised]
    caches: tuple[Cache, ...]
    step: StepData
    kept: list[object] = field(default_factory=list)  # memory that arguments point to

    def keep(self, memory: object) -> None:
        """Until the arena goes."""
        self.kept.append(memory)

    @classmethod
    def build(
        cls, graph: Graph, limits: Limits, blocks: Mapping[int, int], constants: Constants
    ) -> "Arena":
        """`blocks`: block size to the widest source row that is quantised by it."""
        rows = {
            name: zeros((limits.chunk, width), np.float32) for name, width in graph.rows.items()
        }
        quantised = {
            block: Quantised.empty(limits.chunk, width, block, constants)
            for block, width in blocks.items()
        }
        caches = tuple(
            Cache.empty(
                spec,
                Geometry(spec.window, limits.context, limits.chunk),
                limits.slots,
                constants,
            )
            for spec in graph.caches
        )
        return cls(rows, quantised, caches, StepData(limits.chunk))
