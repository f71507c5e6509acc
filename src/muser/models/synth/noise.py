"""Random tensor bytes that are the same on every machine and under every NumPy version.

Words come from SplitMix64 (Steele, Lea, Flood 2014) at a counter, integers alone. Block fields are
set from them, or exact small multiples of powers of two are: no float is ever rounded.

Blocks of one type and size come from one *pool*, of which each tensor takes a consecutive stretch,
around the end if need be. A pool holds as many blocks as the file needs, or `LARGEST_POOL`, a
prime: rows of a longer tensor repeat only after that many, so that no two of 202,048 are equal.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from muser.formats import BlockType

LARGEST_POOL = 262_147  # the least prime above 2^18
_CHUNK = 1 << 16  # words made at once: they stay in cache

# Where the scale d stands in a block, the power of two by which values are larger than d (root mean
# square of scale · code, 1.1 to 1.6 times that), whether d takes both signs, whether mins follow
# scales, and where a second f16 stands the ratio to d that makes the values balance around zero.
_GAIN = {
    "Q8_0": 6, "Q4_0": 2, "Q4_1": 2, "Q5_0": 3, "Q5_1": 3, "Q4_K": 7, "Q5_K": 8, "Q6_K": 10
}  # fmt: skip
_SIGNED = ("Q8_0", "Q4_0", "Q5_0")
_PAIRED = ("Q4_K", "Q5_K")
_RATIO = {"Q4_1": -7.5, "Q5_1": -15.5, "Q4_K": 7.5, "Q5_K": 15.5}

# Significant bits of the odd integers that become float weights.
_BITS = {"F32": 23, "F16": 11, "BF16": 8}


def words(seed: int, label: str, count: int) -> NDArray[np.uint64]:
    """`count` random 64-bit words of the stream that `seed` and `label` name."""
    digest = sha256(f"{seed}/{label}".encode()).digest()
    out = np.empty(count, np.uint64)
    with np.errstate(over="ignore"):
        key = np.uint64(int.from_bytes(digest[:8], "little"))
        for at in range(0, count, _CHUNK):
            counter = np.arange(at + 1, min(at + _CHUNK, count) + 1, dtype=np.uint64)
            out[at : at + _CHUNK] = _mix(counter * np.uint64(0x9E3779B97F4A7C15) + key)
    return out


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def random_bytes(seed: int, label: str, count: int) -> NDArray[np.uint8]:
    """`count` bytes of a stream, words little-endian."""
    return words(seed, label, -(-count // 8)).astype("<u8").view(np.uint8)[:count]


class Pools:
    """Blocks for a whole file: `needed` says how many of each type and power it holds.

    Powers have pools of their own: an embedding row that is also a row of a projection would give
    that one product a size of its own.
    """

    def __init__(self, seed: int, needed: Mapping[tuple[BlockType, int], int]) -> None:
        self._seed = seed
        self._needed = needed
        self._next = dict.fromkeys(needed, 0)
        self._made: dict[tuple[BlockType, int], NDArray[np.uint8]] = {}

    def take(self, kind: BlockType, power: int, blocks: int) -> Iterator[NDArray[np.uint8]]:
        """The next `blocks` blocks of `kind`, of root mean square near 2^power, in pieces."""
        pool = self._pool(kind, power)
        at = self._next[kind, power] % len(pool)
        self._next[kind, power] += blocks
        while blocks:
            piece = pool[at : at + blocks]
            yield piece.reshape(-1)
            blocks -= len(piece)
            at = 0

    def _pool(self, kind: BlockType, power: int) -> NDArray[np.uint8]:
        pool = self._made.get((kind, power))
        if pool is None:
            count = min(self._needed[kind, power], LARGEST_POOL)
            pool = self._made[kind, power] = make_blocks(self._seed, kind, power, count)
        return pool


def make_blocks(seed: int, kind: BlockType, power: int, count: int) -> NDArray[np.uint8]:
    """`uint8[count, bytes]`: valid blocks whose values balance around 0, near 2^power in size."""
    if kind.name in _BITS:
        return _make_floats(seed, kind, power, count)
    label = f"{kind.name} 2^{power}"
    raw = random_bytes(seed, f"blocks {label}", count * kind.bytes).reshape(count, kind.bytes)
    choice = random_bytes(seed, f"scales {label}", count)
    eighths = (8 + (choice & np.uint8(3))).astype(np.float32)  # d = 2^k · {8, 9, 10, 11} / 8
    if kind.name in _SIGNED:
        eighths *= np.where(choice & np.uint8(4), np.float32(-1), np.float32(1))
    d = eighths * np.float32(2.0 ** (power - _GAIN[kind.name] - 3))
    _put_half(raw, kind.scales_at[0], d)
    if kind.name in _PAIRED:
        _pair_scales(raw)
    if kind.name in _RATIO:
        _put_half(raw, kind.scales_at[1], d * np.float32(_RATIO[kind.name]))
    return raw


def _pair_scales(raw: NDArray[np.uint8]) -> None:
    """Let each min equal its scale but for the two lowest bits (byte map: `formats.blocks_k`).

    A sub-block far from zero would make rows alike: embeddings and heads would agree on it.
    """
    low = np.uint8(0b11)
    raw[:, 8:12] = raw[:, 4:8] & ~low | raw[:, 8:12] & low
    third = raw[:, 12:16]
    raw[:, 12:16] = third & np.uint8(0x3F) | (third & np.uint8(0x0C)) << np.uint8(4)


def _put_half(raw: NDArray[np.uint8], at: int, values: NDArray[np.float32]) -> None:
    raw[:, at : at + 2] = values.astype("<f2")[:, None].view(np.uint8)


def _make_floats(seed: int, kind: BlockType, power: int, count: int) -> NDArray[np.uint8]:
    """Odd integers of the type's full width, even over ±2^(power + 1)."""
    bits = _BITS[kind.name]
    lanes = random_bytes(seed, f"floats {kind.name} 2^{power}", 4 * count).view("<u4")
    odd = (lanes >> np.uint32(32 - bits)).astype(np.int64) * 2 + 1 - (1 << bits)
    values = odd.astype(np.float32) * np.float32(2.0 ** (power + 1 - bits))
    if kind is BlockType.F16:
        return values.astype("<f2")[:, None].view(np.uint8)
    if kind is BlockType.F32:
        return values.astype("<f4")[:, None].view(np.uint8)
    return (values.view(np.uint32) >> np.uint32(16)).astype("<u2")[:, None].view(np.uint8)
