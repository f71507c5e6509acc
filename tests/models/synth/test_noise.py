from collections.abc import Mapping

import numpy as np
import pytest

from muser.formats import READABLE, BlockType, dequantise
from muser.models.synth.noise import LARGEST_POOL, Pools, make_blocks, random_bytes, words

KINDS = sorted(READABLE, key=lambda kind: kind.id)


def test_words_are_splitmix64() -> None:
    """A plain-integer SplitMix64, whose published first outputs for seed 0 stand below."""
    mask = (1 << 64) - 1

    def reference(state: int, count: int) -> list[int]:
        out = []
        for _ in range(count):
            state = state + 0x9E3779B97F4A7C15 & mask
            z = state
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
            out.append(z ^ z >> 31)
        return out

    assert reference(0, 2) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    # sha256(b"5/label"), its first eight bytes little-endian
    assert words(5, "label", 4).tolist() == reference(0x31EC94127B850194, 4)


def test_streams_do_not_depend_on_how_much_is_asked() -> None:
    long = random_bytes(1, "x", 1 << 20)
    for count in (0, 1, 7, 8, 9, (1 << 19) + 3):
        assert np.array_equal(random_bytes(1, "x", count), long[:count])
    assert not np.array_equal(random_bytes(2, "x", 64), long[:64])
    assert not np.array_equal(random_bytes(1, "y", 64), long[:64])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("power", [-8, -3, 0, 5])
def test_blocks_have_the_size_asked_for(kind: BlockType, power: int) -> None:
    values = dequantise(kind, make_blocks(3, kind, power, 256)).astype(np.float64)
    assert np.isfinite(values).all()
    size = np.sqrt(np.mean(values**2)) / 2.0**power
    assert 1.05 < size < 1.65
    assert abs(values.mean()) < 0.2 * size * 2.0**power
    assert len(np.unique(values)) > 30


@pytest.mark.parametrize("kind", [k for k in KINDS if k.elements > 1], ids=lambda kind: kind.name)
def test_every_byte_of_a_block_varies(kind: BlockType) -> None:
    assert np.all(np.ptp(make_blocks(3, kind, 0, 512), axis=0) > 0)


def test_float_weights_use_their_whole_width() -> None:
    for kind, bits in ((BlockType.F32, 23), (BlockType.F16, 11), (BlockType.BF16, 8)):
        scaled = dequantise(kind, make_blocks(0, kind, 0, 4096)).astype(np.float64) * 2 ** (
            bits - 1
        )
        assert np.all(scaled % 2 == 1)  # odd integers: the last bit is in use
        assert np.abs(scaled).max() > 2**bits * 0.99


def drain(pools: Pools, kind: BlockType, blocks: int) -> bytes:
    return b"".join(piece.tobytes() for piece in pools.take(kind, 0, blocks))


def test_pools_hand_out_consecutive_blocks() -> None:
    needed: Mapping[tuple[BlockType, int], int] = {(BlockType.Q8_0, 0): 10}
    pools = Pools(4, needed)
    whole = make_blocks(4, BlockType.Q8_0, 0, 10).tobytes()
    assert drain(pools, BlockType.Q8_0, 3) + drain(pools, BlockType.Q8_0, 7) == whole


def test_a_large_tensor_goes_around_the_pool_without_equal_rows() -> None:
    rows, columns = 202_048, 26  # the head of the full-size model, in Q4_0 for speed
    total = rows * columns
    pools = Pools(0, {(BlockType.Q4_0, 0): total})
    starts = np.arange(rows, dtype=np.int64) * columns % LARGEST_POOL
    assert len(np.unique(starts)) == rows
    pieces = pools.take(BlockType.Q4_0, 0, total)
    pool = next(pieces)
    assert pool.size == LARGEST_POOL * 18
    assert next(pieces) is not None
    assert len(np.unique(pool.reshape(-1, 18)[:, 2:], axis=0)) == LARGEST_POOL
