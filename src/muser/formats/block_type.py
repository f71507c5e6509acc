"""The ggml tensor types: id, elements a block, bytes a block.

Ids and sizes: ggml's `ggml.h` and `ggml-common.h` as published in the `gguf` package's
`GGML_QUANT_SIZES`, against which a test compares the whole table.
"""

from enum import Enum

from muser.errors import FormatError


class BlockType(Enum):
    """A tensor type; `READABLE` ones have codecs, the others are known so as to be named."""

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    BF16 = (30, 1, 2)
    Q8_0 = (8, 32, 34)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)

    Q8_1 = (9, 32, 40)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q8_K = (15, 256, 292)
    IQ2_XXS = (16, 256, 66)
    IQ2_XS = (17, 256, 74)
    IQ3_XXS = (18, 256, 98)
    IQ1_S = (19, 256, 50)
    IQ4_NL = (20, 32, 18)
    IQ3_S = (21, 256, 110)
    IQ2_S = (22, 256, 82)
    IQ4_XS = (23, 256, 136)
    I8 = (24, 1, 1)
    I16 = (25, 1, 2)
    I32 = (26, 1, 4)
    I64 = (27, 1, 8)
    F64 = (28, 1, 8)
    IQ1_M = (29, 256, 56)
    TQ1_0 = (34, 256, 54)
    TQ2_0 = (35, 256, 66)
    MXFP4 = (39, 32, 17)
    NVFP4 = (40, 64, 36)
    Q1_0 = (41, 128, 18)

    @property
    def id(self) -> int:
        """The number that stands in a GGUF file."""
        return self.value[0]

    @property
    def elements(self) -> int:
        """Elements in one block."""
        return self.value[1]

    @property
    def bytes(self) -> int:
        """Bytes of one block."""
        return self.value[2]

    @property
    def scales_at(self) -> tuple[int, ...]:
        """Byte offsets of a block's f16 scales, d first; () for float types and unread ones."""
        return _SCALES_AT.get(self.name, ())

    def row_bytes(self, n: int) -> int:
        """Bytes of a row of `n` elements.

        Raises FormatError unless `n` is a positive multiple of the block.
        """
        if n <= 0 or n % self.elements:
            raise FormatError(
                f"A row of {n} elements does not divide into {self.name} blocks"
                f" of {self.elements}.",
                "Choose another tensor type or another width.",
            )
        return n // self.elements * self.bytes


FLOATS = (BlockType.F32, BlockType.F16, BlockType.BF16)
"""The types without blocks: an element is a value."""

_SCALES_AT = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),  # d, m
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),  # d, dmin
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}

READABLE = frozenset(
    {
        *FLOATS,
        BlockType.Q8_0,
        BlockType.Q4_0,
        BlockType.Q4_1,
        BlockType.Q5_0,
        BlockType.Q5_1,
        BlockType.Q4_K,
        BlockType.Q5_K,
        BlockType.Q6_K,
    }
)
"""The types that this package dequantises: `FLOATS`, and those whose blocks it unpacks."""
