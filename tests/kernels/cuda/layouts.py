"""Weights as they lie on a card, made from a file's rows in NumPy, as `place_<type>` makes them."""

import numpy as np

from muser.formats import BlockType
from muser.graph import oracle

from ..bench import FLOATS

GROUP, OUTPUTS = 256, 16

# The pieces of a block of 32, in the order in which a group of eight blocks holds them.
PIECES = {
    BlockType.Q8_0: ((0, 2), (2, 34)),
    BlockType.Q4_0: ((0, 2), (2, 18)),
    BlockType.Q4_1: ((0, 2), (2, 4), (4, 20)),
    BlockType.Q5_0: ((0, 2), (2, 6), (6, 22)),
    BlockType.Q5_1: ((0, 2), (2, 4), (4, 8), (8, 24)),
}


def placed(kind, raw, pad=128):
    """`raw` u8 `[outputs, row bytes]` as tiles, u8 `[padded outputs / 16, units, bytes]`."""
    raw = np.pad(raw, ((0, -len(raw) % pad), (0, 0)))
    units, apart = _floats(kind, raw) if kind in FLOATS else _quantised(kind, raw)
    pieces = [
        one.reshape(-1, OUTPUTS, *one.shape[1:])
        .swapaxes(1, 2)
        .reshape(-1, one.shape[1], OUTPUTS * one.shape[2])
        for one in (units, apart)
        if one.size
    ]
    return np.concatenate(pieces, axis=2)


def _quantised(kind, raw):
    """An output's units, u8 `[outputs, groups, bytes]`, and what stands behind its tile."""
    outputs = len(raw)
    blocks = raw.reshape(outputs, -1, kind.bytes)
    if kind is BlockType.Q6_K:
        parts = (blocks[..., 192:208], blocks[..., :192])
        return np.concatenate(parts, axis=-1), blocks[..., 208:]
    if kind.elements == GROUP:
        return blocks, blocks[..., :0]
    short = -blocks.shape[1] % 8
    whole = np.pad(blocks, ((0, 0), (0, short), (0, 0))).reshape(outputs, -1, 8, kind.bytes)
    pieces = [whole[..., a:b].reshape(*whole.shape[:2], -1) for a, b in PIECES[kind]]
    return np.concatenate(pieces, axis=-1), whole[:, :, 0, :0]


def _floats(kind, raw):
    codes, steps = oracle.weight_grid(kind, raw)
    scales = np.ldexp(np.float32(1), steps.astype(np.int32)).astype(np.float32)
    units = np.ascontiguousarray(codes.astype(np.int16)).view(np.uint8)
    return units.reshape(len(raw), scales.shape[1], -1), scales[..., None].view(np.uint8)
