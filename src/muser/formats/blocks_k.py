"""Blocks of 256 elements: Q4_K, Q5_K, Q6_K.

Q4_K 144 bytes   0..1 d f16   2..3 dmin f16   4..15 s[12]   16..143 qs[128]
Q5_K 176 bytes   0..1 d f16   2..3 dmin f16   4..15 s[12]   16..47 qh[32]   48..175 qs[128]
Q6_K 210 bytes   0..127 ql    128..191 qh     192..207 scales i8[16]        208..209 d f16

s: eight 6-bit scales sc and mins m of 32 elements each
   j < 4   sc = s[j] & 63                            m = s[j+4] & 63
   j >= 4  sc = s[j+4] & 15 | (s[j-4] >> 6) << 4     m = s[j+4] >> 4 | (s[j] >> 6) << 4
qs[32g + l], g < 4: low nibble element 64g + l, high nibble element 64g + 32 + l
qh[l] of Q5_K, bit j: the fifth bit of element 32j + l
ql[64h + l] of Q6_K, h < 2, l < 64: low nibble element 128h + l, high nibble 128h + 64 + l
qh[32h + l] of Q6_K, l < 32, bits 2j..2j+1: bits 4..5 of element 128h + 32j + l

Q4_K, Q5_K: d · sc · code − dmin · m    Q6_K: d · scale[e // 16] · (code − 32)
"""

import numpy as np
from numpy.typing import NDArray

from muser.formats.unpacked import Unpacked, half, half_bytes

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Codes = NDArray[np.int16]

_ZERO = np.float32(0)
_U8 = np.uint8
_TWOS = np.array([[0], [2], [4], [6]], np.uint8)
_FOURS = np.array([[0], [4]], np.uint8)


def unpack_q4_k(raw: Bytes) -> Unpacked:
    """`raw` is `uint8[rows, blocks, 144]`."""
    return _with_mins(raw, _nibbles(raw[..., 16:]))


def unpack_q5_k(raw: Bytes) -> Unpacked:
    """`raw` is `uint8[rows, blocks, 176]`."""
    fifth = (raw[..., 16:48][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    high = fifth.reshape(*raw.shape[:-1], 256).astype(np.int16) << 4
    return _with_mins(raw, _nibbles(raw[..., 48:]) | high)


def unpack_q6_k(raw: Bytes) -> Unpacked:
    """`raw` is `uint8[rows, blocks, 210]`."""
    front = raw.shape[:-1]
    low = raw[..., :128].reshape(*front, 2, 1, 64)
    low = (low >> _FOURS & _U8(15)).reshape(*front, 256)
    high = raw[..., 128:192].reshape(*front, 2, 1, 32)
    high = (high >> _TWOS & _U8(3)).reshape(*front, 256)
    codes = low | high << _U8(4)
    scales = np.ascontiguousarray(raw[..., 192:208]).view(np.int8).astype(np.int16)
    return Unpacked(codes.astype(np.int16) - np.int16(32), half(raw, 208), scales)


def quantise_q4_k(x: Floats) -> Bytes:
    """`x` is `f32[blocks, 256]`."""
    head, codes = _quantise_with_mins(x, 15)
    return np.concatenate([head, _pack_nibbles(codes)], axis=-1)


def quantise_q5_k(x: Floats) -> Bytes:
    """`x` is `f32[blocks, 256]`."""
    head, codes = _quantise_with_mins(x, 31)
    fifth = (codes >> 4).reshape(-1, 8, 32).astype(np.uint8)
    high = np.packbits(fifth, axis=1, bitorder="little")[:, 0]
    return np.concatenate([head, high, _pack_nibbles(codes & 15)], axis=-1)


def quantise_q6_k(x: Floats) -> Bytes:
    """`x` is `f32[blocks, 256]`.

    A group's step is its first value of largest magnitude over −32, so that this value is a code
    of its own; the largest step becomes scale −128 of d.
    """
    groups = x.reshape(-1, 16, 16)
    step = _first_largest(groups) / np.float32(-32)
    d = _as_half(_first_largest(step) / np.float32(-128))
    scales = np.clip(np.rint(_divide(step, d[:, None])), -128, 127)
    codes = np.rint(_divide(groups, (d[:, None] * scales)[..., None]))
    whole = (np.clip(codes, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = whole[:, :, :2] & _U8(15) | (whole[:, :, 2:] & _U8(15)) << _U8(4)
    high = whole >> _U8(4) << _TWOS
    packed = high[:, :, 0] | high[:, :, 1] | high[:, :, 2] | high[:, :, 3]
    parts = [low.reshape(-1, 128), packed.reshape(-1, 64), scales.astype(np.int8).view(np.uint8)]
    return np.concatenate([*parts, half_bytes(d)], axis=-1)


def _with_mins(raw: Bytes, codes: Codes) -> Unpacked:
    s = raw[..., 4:16].astype(np.int16)
    first, second, third = s[..., :4], s[..., 4:8], s[..., 8:]
    scales = [first & 63, third & 15 | first >> 6 << 4]
    mins = [second & 63, third >> 4 | second >> 6 << 4]
    return Unpacked(
        codes,
        half(raw, 0),
        np.concatenate(scales, axis=-1),
        np.concatenate(mins, axis=-1),
        half(raw, 2),
    )


def _nibbles(qs: Bytes) -> Codes:
    grouped = qs.reshape(*qs.shape[:-1], 4, 1, 32) >> _FOURS & 15
    return grouped.reshape(*qs.shape[:-1], 256).astype(np.int16)


def _pack_nibbles(codes: Codes) -> Bytes:
    pairs = codes.astype(np.uint8).reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] | pairs[:, :, 1] << _U8(4)).reshape(-1, 128)


def _quantise_with_mins(x: Floats, top: int) -> tuple[Bytes, Codes]:
    """The 16 head bytes and the codes 0..top, each group spanning from its least value (or 0)."""
    groups = x.reshape(-1, 8, 32)
    low = np.minimum(groups.min(axis=-1), _ZERO)
    step = (np.maximum(groups.max(axis=-1), _ZERO) - low) / np.float32(top)
    d = _as_half(step.max(axis=-1) / np.float32(63))
    dmin = _as_half(-low.min(axis=-1) / np.float32(63))
    scales = np.clip(np.rint(_divide(step, d[:, None])), 0, 63)
    mins = np.clip(np.rint(_divide(-low, dmin[:, None])), 0, 63)
    lifted = groups + (dmin[:, None] * mins)[..., None]
    codes = np.clip(np.rint(_divide(lifted, (d[:, None] * scales)[..., None])), 0, top)
    head = [half_bytes(d), half_bytes(dmin), _pack_scales(scales, mins)]
    return np.concatenate(head, axis=-1), codes.astype(np.int16).reshape(-1, 256)


def _pack_scales(scales: Floats, mins: Floats) -> Bytes:
    sc, m = scales.astype(np.uint8), mins.astype(np.uint8)
    four, six, low = _U8(4), _U8(6), _U8(15)
    first = sc[:, :4] | sc[:, 4:] >> four << six
    second = m[:, :4] | m[:, 4:] >> four << six
    third = sc[:, 4:] & low | (m[:, 4:] & low) << four
    return np.concatenate([first, second, third], axis=-1)


def _first_largest(x: Floats) -> Floats:
    """The first value of largest magnitude along the last axis."""
    first = np.abs(x).argmax(axis=-1, keepdims=True)
    return np.take_along_axis(x, first, axis=-1)[..., 0]


def _as_half(x: Floats) -> Floats:
    return x.astype(np.float16).astype(np.float32)


def _divide(x: Floats, by: Floats) -> Floats:
    """x / by, and 0 where `by` is 0."""
    return np.divide(x, by, out=np.zeros_like(x), where=by != 0)
