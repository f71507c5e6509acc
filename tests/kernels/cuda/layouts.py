"""Weights as they lie on a card, made from a file's rows in NumPy, as `place_<type>` makes them."""

import numpy as np

from muser.formats import BlockType

GROUP = 256

# The pieces of a block of 32, in the order in which a group of eight blocks holds them.
PIECES = {
    BlockType.Q8_0: ((0, 2), (2, 34)),
    BlockType.Q4_0: ((0, 2), (2, 18)),
    BlockType.Q4_1: ((0, 2), (2, 4), (4, 20)),
    BlockType.Q5_0: ((0, 2), (2, 6), (6, 22)),
    BlockType.Q5_1: ((0, 2), (2, 4), (4, 8), (8, 24)),
}


def placed(kind, raw):
    """`raw` u8 `[outputs, row bytes]` as u8 `[outputs, groups, bytes]`, and Q6_K's d, f16."""
    outputs = len(raw)
    blocks = raw.reshape(outputs, -1, kind.bytes)
    if kind is BlockType.Q6_K:
        parts = (blocks[..., 192:208], blocks[..., :192])
        plane = np.ascontiguousarray(blocks[..., 208:]).view(np.uint16)[..., 0]
        return np.concatenate(parts, axis=-1), plane
    if kind.elements == GROUP:
        return blocks, None
    short = -blocks.shape[1] % 8
    whole = np.pad(blocks, ((0, 0), (0, short), (0, 0))).reshape(outputs, -1, 8, kind.bytes)
    pieces = [whole[..., a:b].reshape(*whole.shape[:2], -1) for a, b in PIECES[kind]]
    return np.concatenate(pieces, axis=-1), None
