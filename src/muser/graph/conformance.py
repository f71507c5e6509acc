"""What a device must reproduce before its first pipeline: words, not tolerances.

The primitive table is section 1 of `docs/arithmetic.md`. The digests below it (norms of section 6,
attention of section 7, weights, rotation, a gate and a softcap) run a device's real kernels over
inputs that a formula fills, so that the data are this page.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from muser.formats import BlockType
from muser.graph.arithmetic import F32, f32
from muser.graph.ops import Pairing, RopeSpec

FMA = (
    ("0x1.001p0", "0x1.001p0", "0x1p-60", "0x1.002002p0"),
    ("0x1.003p0", "0x1.001p0", "-0x1p-70", "0x1.004002p0"),
    ("0x1.000002p-12", "0x1.fffffcp-13", "0x1.000002p0", "0x1.000002p0"),
)
RNE_FACTOR = "0x1.52aaaap5"
RNE = (("0x1.ce9d3cp0", 77), ("-0x1.ad5ab6p-1", -35), ("0x1.f8f1e4p0", 83))
INT32_TO_F32 = (
    (16777217, "0x1p24"),
    (16777219, "0x1.000004p24"),
    (33554435, "0x1.000002p25"),
    (2147483583, "0x1.fffffep30"),
    (2147483585, "0x1p31"),
)
INT64_TO_F32 = (((1 << 60) + (1 << 36) + 1, "0x1.000002p60"),)
F32_TO_F16 = (
    ("0x1.002p0", 0x3C00),
    ("0x1.006p0", 0x3C02),
    ("0x1p-25", 0x0000),
    ("0x1.000002p-25", 0x0001),
    ("0x1.8p-24", 0x0002),
    ("0x1.ffdffep15", 0x7BFF),
)
DIVIDE = (
    ("-0x1.fcp6", "0x1.234568p-3", "-0x1.be7cp9"),
    ("0x1.000002p0", "0x1.fffffep0", "0x1.000004p-1"),
    ("0x1.fcp6", "0x1.8p1", "0x1.52aaaap5"),  # a product with 1 ÷ b gives 0x1.52aaacp5
)
INVERSE_ROOT = (("0x1.8p-17", "0x1.279a74p8"), ("0x1.fffffcp1", "0x1.000002p-1"))
GRID = (("0x1.fff8p0", 2047), ("0x1p-11", 0), ("-0x1.8p-10", -2), ("0x1.004p-10", 1))
GRID_STEP = -10
# One ulp in any coefficient of E but the first, or a Horner step without fma, changes one of these.
EXP2_FRACTION = (("0x1.eea968p-1", "0x1.f41f3ap+0"), ("0x1.6cep-1", "0x1.a388e6p+0"))
EXP = (
    ("-0x1.44p6", "0x0p0"),
    ("-0x1.4p6", "0x1.7fd978p-116"),
    ("-0x1.8cp1", "0x1.735b58p-5"),
    ("0x1.f3p-4", "0x1.212abp+0"),
    ("0x1.6p3", "0x1.d3c448p+15"),
    ("0x1.9p6", "0x1.55779ep+115"),
)


def fill(count: int, multiplier: int, modulus: int, offset: int, shift: int) -> F32:
    """F(i) = f32((m·i mod p) − o)·2^−h for i in 0…count−1."""
    i = np.arange(count, dtype=np.int64)
    return ((multiplier * i) % modulus - offset).astype(np.float32) * np.float32(2.0**-shift)


@dataclass(frozen=True, slots=True)
class AttentionVector:
    """Four query heads over one KV head of `count` rows, `first` to `last` − 1 visible.

    Keys of odd tiles are times 2^cliff: tiles then differ by more than 100 binades, which is where
    the shifts of the merge are cut and z acts.
    """

    dim: int
    count: int
    first: int
    last: int
    digest: str
    cliff: int = 0

    def query(self) -> F32:
        return fill(4 * self.dim, 101, 977, 488, 7).reshape(1, 4, self.dim)

    def keys(self) -> F32:
        """Before the snap of a stored row: `[count, dim]`."""
        rows = fill(self.count * self.dim, 37, 1009, 503, 8).reshape(self.count, self.dim)
        odd = np.arange(self.count)[:, None] // 128 % 2 == 1
        return np.where(odd, rows * np.float32(2.0**self.cliff), rows).astype(np.float32)

    def values(self) -> F32:
        rows = fill(self.count * self.dim, 19, 257, 128, 6).reshape(self.count, self.dim)
        powers = np.ldexp(np.float32(1), np.arange(self.count, dtype=np.int32) % 7 - 3)
        return (rows * powers[:, None]).astype(np.float32)


ATTENTION = (
    AttentionVector(128, 300, 0, 300, "02838a425fc8e567"),
    AttentionVector(128, 300, 130, 299, "6f9f81321ca28fa5"),
    AttentionVector(128, 2500, 401, 2449, "43b0d14f7b702041"),
    AttentionVector(64, 300, 0, 300, "ba38e75deaa011eb"),
    AttentionVector(256, 300, 5, 300, "03f866c0722a1f8b"),
    AttentionVector(128, 600, 40, 600, "a97e3706aa26d7f6", cliff=5),
    AttentionVector(128, 3100, 0, 3100, "80cb77dc6c9b2025"),
    AttentionVector(64, 3100, 0, 3100, "1520625517d45061"),
)


@dataclass(frozen=True, slots=True)
class NormVector:
    """One row of `count` values with eps 1e-5."""

    count: int
    digest: str

    def row(self) -> F32:
        return fill(self.count, 37, 1009, 503, 8)

    def weight(self) -> F32:
        return (np.float32(1) + fill(self.count, 19, 257, 128, 12)).astype(np.float32)


NORMS = (
    NormVector(128, "c0afa98094291253"),
    NormVector(576, "95011672fcff8b05"),
    NormVector(6656, "a8dc34ac0fb33348"),
)
NORM_EPS = 1e-5


ROWS = 17
"""Rows of the vectors below: a device computes them as it computes 1, 2 to 4, 5 to 16 and more."""


def fill_rows(width: int, multiplier: int, modulus: int, offset: int, shift: int) -> F32:
    """F over `ROWS` rows of `width`."""
    return fill(ROWS * width, multiplier, modulus, offset, shift).reshape(ROWS, width)


HALVES: Mapping[BlockType, tuple[int, ...]] = MappingProxyType(
    {
        BlockType.Q8_0: (0,),
        BlockType.Q4_1: (0, 2),
        BlockType.Q5_0: (0,),
        BlockType.Q5_1: (0, 2),
        BlockType.Q4_K: (0, 2),
        BlockType.Q6_K: (208,),
    }
)
"""Where a block's f16 scales stand."""


@dataclass(frozen=True, slots=True)
class WeightVector:
    """`out` weight rows of `width`: digests of their own values and of their products with `rows`.

    Byte i of all blocks is (101·i mod 977) mod 256; then f16 scale j, counted in the order of the
    file, is F(j; 19, 257, 128, 12). F16 weights are F(i; 19, 257, 128, 6) times 2^(row mod 7).
    """

    type: BlockType
    width: int
    out: int
    values: str
    products: str

    def rows(self) -> F32:
        return fill_rows(self.width, 37, 1009, 503, 8)

    def weights(self) -> NDArray[np.uint8]:
        """uint8 `[out, row bytes]`."""
        if self.type is BlockType.F16:
            flat = fill(self.out * self.width, 19, 257, 128, 6).reshape(self.out, self.width)
            powers = np.ldexp(np.float32(1), np.arange(self.out, dtype=np.int32) % 7)
            return (flat * powers[:, None]).astype(np.float16).view(np.uint8)
        shape = (self.out * self.width // self.type.elements, self.type.bytes)
        i = np.arange(shape[0] * shape[1], dtype=np.int64)
        blocks = (101 * i % 977 % 256).astype(np.uint8).reshape(shape)
        places = HALVES[self.type]
        scales = fill(shape[0] * len(places), 19, 257, 128, 12).astype(np.float16)
        for place, column in zip(places, scales.reshape(-1, len(places)).T, strict=True):
            blocks[:, place : place + 2] = (
                np.ascontiguousarray(column).view(np.uint8).reshape(-1, 2)
            )
        return blocks.reshape(self.out, -1)


WEIGHTS = (
    WeightVector(BlockType.Q4_K, 512, 19, "36e1387a4883cc4c", "c33f8aa79055bd31"),
    WeightVector(BlockType.Q6_K, 512, 19, "6f8feb6218f0ffbe", "fc7966976b97e646"),
    WeightVector(BlockType.Q4_1, 288, 19, "d4c529cb51b88ba2", "5c0c4852d43450b9"),
    WeightVector(BlockType.Q5_0, 288, 19, "6fcc6ea7e3aafba8", "9d8a7f8591cfa03e"),
    WeightVector(BlockType.Q5_1, 288, 19, "f7051cd520053504", "d196979be83ed7ce"),
    WeightVector(BlockType.Q8_0, 288, 19, "16b752feedca5fe7", "758d91e35deca495"),
    WeightVector(BlockType.F16, 200, 19, "44ce5316998b5a58", "4e4fff4fa735606f"),
)


@dataclass(frozen=True, slots=True)
class RopeVector:
    """Two heads of 32, of which 24 elements turn, at positions 0 to 16."""

    pairing: Pairing
    digest: str

    def spec(self) -> RopeSpec:
        return RopeSpec(24, 500000.0, self.pairing)

    def rows(self) -> F32:
        return fill_rows(64, 37, 1009, 503, 8)


ROPES = (
    RopeVector(Pairing.INTERLEAVED, "9582b0ef218d7f55"),
    RopeVector(Pairing.HALF_SPLIT, "a7b91c5cc77a590d"),
)

SILU_GATE = "c08b4c04555d167d"
SOFTCAP = "e4c0031aa7035410"
SOFTCAP_CAP = 30.0


def gate_rows() -> F32:
    """Source of `SOFTCAP`, and the gate of `SILU_GATE`: from −62.9 to 63.1."""
    return fill_rows(100, 37, 1009, 503, 3)


def up_rows() -> F32:
    """What the gate of `SILU_GATE` is multiplied with."""
    return fill_rows(100, 19, 257, 128, 6)


def digest(x: F32) -> str:
    """First 16 hexadecimal digits of the SHA-256 of little-endian f32."""
    return hashlib.sha256(np.ascontiguousarray(x, "<f4").tobytes()).hexdigest()[:16]


def column(table: tuple[tuple[str, ...], ...], index: int) -> F32:
    """One column of a table of hexadecimal floats."""
    return np.array([f32(row[index]) for row in table], np.float32)


def mismatches(expected: NDArray[np.generic], actual: NDArray[np.generic]) -> int:
    """How many words differ, compared as bytes."""
    left = np.ascontiguousarray(expected).view(np.uint8)
    right = np.ascontiguousarray(actual).view(np.uint8)
    return int(np.count_nonzero(left != right)) if left.shape == right.shape else left.size
