"""How weights lie on a card: bytes of each format, as `kernels/cuda/blocks.cuh` has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from muser.errors import DeviceError
from muser.formats import FLOATS, BlockType
from muser.graph.arithmetic import GRID_BLOCK
from muser.kv import round_up

GROUP = 256  # elements
PAD = 128  # a weight's outputs are a multiple of so many, zeros at the end
GROUP_BYTES: Mapping[BlockType, int] = MappingProxyType(
    {
        BlockType.Q4_K: 144,
        BlockType.Q5_K: 176,
        BlockType.Q6_K: 208,
        BlockType.Q8_0: 272,
        BlockType.Q4_0: 144,
        BlockType.Q4_1: 160,
        BlockType.Q5_0: 176,
        BlockType.Q5_1: 192,
    }
)

GRID_BYTES = 2 * GRID_BLOCK  # of 128 codes of a float weight
APART: Mapping[BlockType, int] = MappingProxyType({BlockType.Q6_K: 2, **dict.fromkeys(FLOATS, 4)})
"""Bytes of an output that stand behind its tile: d of Q6_K, the step of floats."""
TILE_OUTPUTS = 16


def unit_bytes(kind: BlockType) -> int:
    """Of one output: a group of 256 elements, of floats 128, without what stands apart."""
    return GRID_BYTES if kind in FLOATS else GROUP_BYTES[kind]


def tile_bytes(kind: BlockType) -> int:
    """Of one unit of sixteen outputs."""
    return TILE_OUTPUTS * (unit_bytes(kind) + APART.get(kind, 0))


@dataclass(frozen=True, slots=True)
class Layout:
    """One weight's place: tiles `[padded outputs / 16][groups]`, `bytes` in all."""

    type: BlockType
    width: int
    outputs: int

    @classmethod
    def of(cls, kind: BlockType, width: int, outputs: int) -> "Layout":
        """Raises `DeviceError` for a type that the device does not multiply by."""
        if kind not in GROUP_BYTES and kind not in FLOATS:
            raise DeviceError(
                f"The CUDA device has no projection for {kind.name} weights.",
                f"Supported: {', '.join(sorted(known.name for known in (*GROUP_BYTES, *FLOATS)))}.",
            )
        return cls(kind, width, outputs)

    @property
    def tiles(self) -> int:
        """Of `TILE_OUTPUTS` outputs that are not all padding."""
        return -(-self.outputs // TILE_OUTPUTS)

    @property
    def groups(self) -> int:
        """Of a row: of 256 elements, of 128 for float weights."""
        return -(-self.width // (GRID_BLOCK if self.type in FLOATS else GROUP))

    @property
    def block(self) -> int:
        """Elements of a quantised row that share a scale."""
        return GRID_BLOCK if self.type in FLOATS else self.type.elements

    @property
    def bytes(self) -> int:
        return round_up(self.outputs, PAD) // TILE_OUTPUTS * self.groups * tile_bytes(self.type)
