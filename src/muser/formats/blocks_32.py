"""Blocks of 32 elements: Q8_0, Q4_0, Q4_1.

    Q8_0  34 bytes   0..1 d f16   2..33 code i8 of element 0..31
    Q4_0  18 bytes   0..1 d f16   2..17 byte i: low nibble element i, high nibble element i+16
    Q4_1  20 bytes   0..1 d f16   2..3 m f16    4..19 nibbles as in Q4_0

    Q8_0: d · code    Q4_0: d · (nibble − 8)    Q4_1: d · nibble + m

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
    first = np.abs(x).argmax(axis=-1, keepdims=True)
    d = np.take_along_axis(x, first, axis=-1)[:, 0] / np.float32(-8)
    codes = np.trunc(x * _inverse(d)[:, None] + np.float32(8.5))
    return np.concatenate([half_bytes(d), _pack_nibbles(codes)], axis=-1)


def quantise_q4_1(x: Floats) -> Bytes:
    """`x` is `f32[blocks, 32]`; m = the least value, d = the span / 15."""
    low = x.min(axis=-1)
    d = (x.max(axis=-1) - low) / np.float32(15)
    codes = np.trunc((x - low[:, None]) * _inverse(d)[:, None] + np.float32(0.5))
    return np.concatenate([half_bytes(d), half_bytes(low), _pack_nibbles(codes)], axis=-1)


def _nibbles(raw: Bytes) -> NDArray[np.int16]:
    return np.concatenate([raw & 15, raw >> 4], axis=-1).astype(np.int16)


def _pack_nibbles(codes: Floats) -> Bytes:
    whole = np.clip(codes, 0, 15).astype(np.uint8)
    return whole[:, :16] | (whole[:, 16:] << np.uint8(4))


def _inverse(d: Floats) -> Floats:
    """1/d, and 0 where that is no finite number: such a block rounds to zeros in f16 anyway."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    return np.where(np.isfinite(inverse), inverse, np.float32(0))
