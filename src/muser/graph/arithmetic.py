"""The primitives of the canonical arithmetic in NumPy: the meaning of every float in this engine.

Each function is one paragraph of `docs/arithmetic.md`. Arrays are float32 unless said otherwise;
integers travel as int64 or as float64 holding integers below 2^53. Sums, exponentials and other
library functions on floats are not used: their order and their last bits are nobody's promise.
"""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Word = F32 | np.float32

MAGIC = np.float32(float.fromhex("0x1.8p23"))
SMALLEST = np.float32(2.0**-40)
LANES = 256

# Grids G(x, p, lo) as (p, lo); with float weights GRID_BLOCK elements of a row share a step.
WEIGHT_GRID = (11, -60)
ROW_GRID = (13, -60)
KV_GRID = (11, -24)
GRID_BLOCK = 128
TILE = 128  # absolute positions that attention sums as integers


def f32(text: str) -> np.float32:
    """A constant written as a hexadecimal float, so that its bits are on the page."""
    return np.float32(float.fromhex(text))


def bits(x: F32) -> NDArray[np.uint32]:
    return np.asarray(x, np.float32).view(np.uint32)


def is_finite(x: F32) -> NDArray[np.bool_]:
    """Exponent not all ones, tested on bits."""
    return np.asarray((bits(x) & np.uint32(0x7F800000)) != np.uint32(0x7F800000))


def z(x: F32) -> F32:
    """|x| < 2^-40 becomes +0; −0 never leaves an operator."""
    return np.where(np.abs(x) < SMALLEST, np.float32(0), x).astype(np.float32, copy=False)


def fma(a: Word, b: Word, c: Word) -> F32:
    """a·b + c with one rounding, subnormal results included.

    The product is exact in f64. The sum is rounded to odd (its error by TwoSum), and since
    53 ≥ 24 + 2 the second rounding to f32 is then the only one that shows (Boldo, Melquiond 2008).
    """
    p = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
    p, addend = np.broadcast_arrays(p, np.asarray(c, np.float32).astype(np.float64))
    s = np.asarray(p + addend)
    t = s - p
    error = (p - (s - t)) + (addend - t)
    u = s.view(np.int64)
    step = np.where((error > 0) == (s > 0), 1, -1)
    odd = u + np.where((error != 0) & ((u & 1) == 0), step, 0)
    return odd.view(np.float64).astype(np.float32)


def rne_fma(a: Word, b: F32) -> I64:
    """The integer nearest to the unrounded a·b, ties to even; |a·b| < 2^22."""
    return (bits(fma(a, b, MAGIC)) & np.uint32(0x7FFFFF)).astype(np.int64) - 0x400000


def power_of_two(k: I64) -> F32:
    """2^k in f32, exact for k in −149…127."""
    return np.ldexp(np.float32(1), np.asarray(k, np.int32)).astype(np.float32)


def exponent(x: F32) -> I64:
    """floor(log2 |x|) of normal numbers, from the bits."""
    return ((bits(x) >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int64) - 127


def to_f32(integers: F64 | I64) -> F32:
    """f(·) of the text: integer to f32, nearest even. Exact integers below 2^53."""
    return np.asarray(integers).astype(np.float32)


def quantise_rows(x: F32, block: int) -> tuple[I64, F32]:
    """Q(x, B): codes `[rows, blocks, B]` in −127…127 and scales `[rows, blocks]`."""
    x = np.ascontiguousarray(x, np.float32).reshape(x.shape[0], -1, block)
    largest = np.abs(x).max(axis=2)
    empty = largest == 0
    inverse = np.float32(127) / np.where(empty, np.float32(1), largest).astype(np.float32)
    codes = rne_fma(inverse[:, :, None], x)
    scale = np.where(empty, np.float32(0), np.float32(1) / inverse).astype(np.float32)
    return codes, scale


def grid_rows(x: F32, precision: int, lowest: int) -> tuple[I64, I64]:
    """G(x, p, lo) of the last axis: codes of x's shape and steps e; x ≈ n·2^e."""
    x = np.asarray(x, np.float32)
    largest = np.abs(x).max(axis=-1)
    step = np.where(largest == 0, lowest, np.maximum(exponent(largest) + 1 - precision, lowest))
    scaled = x * power_of_two(-step)[..., None]  # exact, or so small that it rounds to 0
    bound = (1 << precision) - 1
    return np.clip(np.rint(scaled), -bound, bound).astype(np.int64), step


def lane_sum_of_squares(x: F32) -> F32:
    """Σ x² over the last axis: lane i mod 256 by fma ascending, then halves 128, 64, …, 1."""
    n = x.shape[-1]
    lanes = np.zeros((*x.shape[:-1], LANES), np.float32)
    for start in range(0, n, LANES):
        part = x[..., start : start + LANES]
        lanes[..., : part.shape[-1]] = fma(part, part, lanes[..., : part.shape[-1]])
    half = LANES // 2
    while half:
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
        half //= 2
    return np.asarray(lanes[..., 0])


def exp(x: F32) -> F32:
    """e^x; below −80 zero, above 80 taken as 80. Formula: `docs/arithmetic.md` 5."""
    x = np.asarray(x, np.float32)
    clamped = np.minimum(np.maximum(x, np.float32(-80)), np.float32(80))
    shifted = fma(clamped, f32("0x1.715476p+0"), MAGIC)
    n = shifted - MAGIC
    r = fma(-n, f32("0x1.62e4p-1"), clamped)
    r = fma(-n, f32("0x1.7f7d1cp-20"), r)
    scale = ((bits(shifted) << np.uint32(23)) + np.uint32(0x3F800000)).view(np.float32)
    square = r * r
    high = fma(f32("0x1.0e4020p-7"), r, f32("0x1.573e2ep-5"))
    low = fma(f32("0x1.555e66p-3"), r, f32("0x1.fffdb6p-2"))
    low = fma(high, square, low)
    c = fma(low, square, f32("0x1.ffffecp-1") * r)
    return np.where(x < np.float32(-80), np.float32(0), fma(c, scale, scale))


def sigmoid(x: F32) -> F32:
    """1/(1+e) or e/(1+e) with e = exp(−|x|), whichever side x is on."""
    e = exp(-np.abs(x))
    below = np.float32(1) + e
    return np.where(x >= 0, np.float32(1) / below, e / below).astype(np.float32)


def silu(x: F32) -> F32:
    return x * sigmoid(x)


def tanh(x: F32) -> F32:
    """sign·(1−e)/(1+e) with e = exp(−2|x|)."""
    e = exp(np.float32(-2) * np.abs(x))
    return np.copysign((np.float32(1) - e) / (np.float32(1) + e), x)


def gelu(x: F32) -> F32:
    """The tanh form, with its inner polynomial as one fma."""
    inner = fma((f32("0x1.6e4e26p-5") * x) * x, x, x)
    return (np.float32(0.5) * x) * (np.float32(1) + tanh(f32("0x1.988454p-1") * inner))


def attention_constant(scale: float) -> np.float32:
    """c of the attention rule: f32 of the f64 product of `scale` and log2 e."""
    return np.float32(scale * 1.4426950408889634)


EXP2_COEFFICIENTS = (
    "0x1.cacdf6p-13",
    "0x1.44bd44p-10",
    "0x1.3d5826p-7",
    "0x1.c67ee4p-5",
    "0x1.ebfdf8p-3",
    "0x1.62e428p-1",
    "0x1p+0",
)


def exp2_fraction(f: F32) -> F32:
    """E(f) of the attention rule: 2^f for 0 ≤ f < 1, degree 6, Horner by fma; E(1) = 2."""
    total = np.full_like(f, f32(EXP2_COEFFICIENTS[0]))
    for coefficient in EXP2_COEFFICIENTS[1:]:
        total = fma(total, f, f32(coefficient))
    return total


def order_keys(logits: F32) -> NDArray[np.uint64]:
    """Token order as integers: larger logit first, then lower id; the largest key wins.

    Key: (ordered bits of the logit << 32) | (2^32 − 1 − id) for the last axis as ids.
    """
    raw = bits(logits)
    ordered = np.where(raw >> np.uint32(31), ~raw, raw | np.uint32(0x80000000)).astype(np.uint64)
    ids = np.arange(logits.shape[-1], dtype=np.uint64)
    return (ordered << np.uint64(32)) | (np.uint64(0xFFFFFFFF) - ids)
