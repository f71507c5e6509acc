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


@dataclass(frozen=True, slots=True)
class Layout:
    """One weight's place: bytes of its codes, and of the plane beside them (0: none)."""

    type: BlockType
    width: int
    outputs: int
    codes: int
    plane: int

    @classmethod
    def of(cls, kind: BlockType, width: int, outputs: int) -> "Layout":
        """Raises `DeviceError` for a type that the device does not multiply by."""
        padded = round_up(outputs, PAD)
        if kind in FLOATS:
            blocks = -(-width // GRID_BLOCK)
            return cls(kind, width, outputs, 2 * padded * blocks * GRID_BLOCK, 4 * padded * blocks)
        if kind not in GROUP_BYTES:
            raise DeviceError(
                f"The CUDA device has no projection for {kind.name} weights.",
                f"Supported: {', '.join(sorted(known.name for known in (*GROUP_BYTES, *FLOATS)))}.",
            )
        groups = -(-width // GROUP)
        plane = 2 * padded * groups if kind is BlockType.Q6_K else 0
        return cls(kind, width, outputs, padded * groups * GROUP_BYTES[kind], plane)

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
        return self.codes + self.plane
