"""Blocks of 32 elements: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.

    Q8_0  34 bytes   0..1 d f16   2..33 code i8 of element 0..31
    Q4_0  18 bytes   0..1 d f16   2..17 byte i: low nibble element i, high nibble element i+16
    Q4_1  20 bytes   0..1 d f16   2..3 m f16    4..19 nibbles as in Q4_0
    Q5_0  22 bytes   0..1 d f16   2..5 fifth bits, bit i of u32: element i   6..21 nibbles
    Q5_1  24 bytes   0..1 d f16   2..3 m f16    4..7 fifth bits   8..23 nibbles

    Q8_0: d · code    Q4_0: d · (code − 8)    Q5_0: d · (code − 16)    Q4_1, Q5_1: d · code + m

The quantisers are ggml's reference ones as the `gguf` package states them, step for step.
"""

import numpy as np
from numpy.typing import NDArray

from muser.formats.unpacked import Unpacked, half, half_bytes

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def unpack_q8_0(raw: Bytes) -> Unpacked:
    """`raw` is `uint8[rows, blocks, 34]`."""
    return Unpacked(raw[..., 2:].view(np.int8).astype(np.int16), half(raw, 0))


def unpack_q4_0(raw: Bytes) -> Unpacked:
    """`raw` is `uint8[rows, blocks, 18]`."""
    return Unpacked(_nibbles(raw[..., 2:]) - np.int16(8), half(raw, 0))


def unpack_q4_1(raw: Bytes) -> Unpacked:
    """`raw` is `uint8[rows, blocks, 20]`."""
    return Unpacked(_nibbles(raw[..., 4:]), half(raw, 0), offset=half(raw, 2))


def unpack_q5_0(raw: Bytes) -> Unpacked:
    """`raw` is `uint8[rows, blocks, 22]`."""
    codes = _nibbles(raw[..., 6:]) + _fifth_bits(raw[..., 2:6])
    return Unpacked(codes - np.int16(16), half(raw, 0))


def unpack_q5_1(raw: Bytes) -> Unpacked:
    """`raw` is `uint8[rows, blocks, 24]`."""
    codes = _nibbles(raw[..., 8:]) + _fifth_bits(raw[..., 4:8])
    return Unpacked(codes, half(raw, 0), offset=half(raw, 2))


def quantise_q8_0(x: Floats) -> Bytes:
    """`x` is `f32[blocks, 32]`; d = max|x| / 127, codes rounded half away from zero."""
    d = np.abs(x).max(axis=-1) / np.float32(127)
    scaled = x * _inverse(d)[:, None]
    size = np.abs(scaled)
    whole = np.floor(size)
    codes = np.sign(scaled) * (whole + np.floor(2 * (size - whole)))
    return np.concatenate([half_bytes(d), codes.astype(np.int8).view(np.uint8)], axis=-1)


def quantise_q4_0(x: Floats) -> Bytes:
    """`x` is `f32[blocks, 32]`; d = −(the first value of largest magnitude) / 8."""
    d, codes = _signed(x, 8)
    return np.concatenate([half_bytes(d), _pack_nibbles(codes)], axis=-1)


def quantise_q5_0(x: Floats) -> Bytes:
    """`x` is `f32[blocks, 32]`; d = −(the first value of largest magnitude) / 16."""
    d, codes = _signed(x, 16)
    return np.concatenate([half_bytes(d), _pack_fifths(codes), _pack_nibbles(codes)], axis=-1)


def quantise_q4_1(x: Floats) -> Bytes:
    """`x` is `f32[blocks, 32]`; m = the least value, d = the span / 15."""
    d, low, codes = _offset(x, 15)
    return np.concatenate([half_bytes(d), half_bytes(low), _pack_nibbles(codes)], axis=-1)


def quantise_q5_1(x: Floats) -> Bytes:
    """`x` is `f32[blocks, 32]`; m = the least value, d = the span / 31."""
    d, low, codes = _offset(x, 31)
    parts = [half_bytes(d), half_bytes(low), _pack_fifths(codes), _pack_nibbles(codes)]
    return np.concatenate(parts, axis=-1)


def _signed(x: Floats, middle: int) -> tuple[Floats, Bytes]:
    """d `[blocks]` and codes 0 … 2·middle − 1 that stand for d · (code − middle)."""
    first = np.abs(x).argmax(axis=-1, keepdims=True)
    d = np.take_along_axis(x, first, axis=-1)[:, 0] / np.float32(-middle)
    codes = np.trunc(x * _inverse(d)[:, None] + np.float32(middle + 0.5))
    return d, np.clip(codes, 0, 2 * middle - 1).astype(np.uint8)


def _offset(x: Floats, top: int) -> tuple[Floats, Floats, Bytes]:
    """d and m `[blocks]`, and codes 0 … top that stand for d · code + m."""
    low = x.min(axis=-1)
    d = (x.max(axis=-1) - low) / np.float32(top)
    codes = np.trunc((x - low[:, None]) * _inverse(d)[:, None] + np.float32(0.5))
    return d, low, np.clip(codes, 0, top).astype(np.uint8)


def _nibbles(raw: Bytes) -> NDArray[np.int16]:
    return np.concatenate([raw & 15, raw >> 4], axis=-1).astype(np.int16)


def _fifth_bits(raw: Bytes) -> NDArray[np.int16]:
    """Sixteen where an element's bit of the four bytes is set."""
    bits = np.unpackbits(np.ascontiguousarray(raw), axis=-1, bitorder="little")
    return bits.astype(np.int16) << np.int16(4)


def _pack_nibbles(codes: Bytes) -> Bytes:
    return (codes[:, :16] & np.uint8(15)) | (codes[:, 16:] << np.uint8(4))


def _pack_fifths(codes: Bytes) -> Bytes:
    return np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")


def _inverse(d: Floats) -> Floats:
    """1/d, and 0 where that is no finite number: such a block rounds to zeros in f16 anyway."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    return np.where(np.isfinite(inverse), inverse, np.float32(0))
