"""Projections of the chunk bucket, every format: the oracle's bits at odd sizes and row counts."""

import numpy as np
import pytest

from muser.formats import BlockType
from muser.graph import oracle

from ..bench import TYPES, differing, random_blocks, random_rows, same_bits
from .chunk import Chunk, placed, wide

ARCHITECTURES = ("sm_80", "sm_90")
SIZES = {
    32: ((32, 1, 17), (288, 130, 67), (576, 40, 130)),
    256: ((256, 3, 17), (768, 130, 67), (512, 40, 130)),
    1: ((200, 19, 17), (129, 65, 67), (384, 66, 130)),
}


@pytest.fixture(params=ARCHITECTURES)
def texts(request, shims):
    return shims(request.param, "tiles.cuh", "gemm.cuh")


def rows_with_the_largest(rng, n, width):
    """Ordinary rows, and codes of ±127 throughout."""
    x = random_rows(rng, n, width)
    x[0] = 1.5
    x[7] = np.where(np.arange(width) % 2, 1.5, -1.5)
    return x


def assert_same(expected, actual):
    assert same_bits(expected, actual), differing(expected, actual)


def cases():
    for kind in TYPES:
        for width, outputs, n in SIZES[kind.elements]:
            yield pytest.param(kind, width, outputs, n, id=f"{kind.name}-{n}x{width}x{outputs}")


@pytest.mark.parametrize(("kind", "width", "outputs", "n"), list(cases()))
def test_equals_the_oracle(texts, rng, kind, width, outputs, n):
    raw, x = random_blocks(rng, kind, outputs, width), rows_with_the_largest(rng, n, width)
    chunk = Chunk(texts, kind, x, room=n + 128)
    (out,) = chunk.project(kind, [placed(kind, raw, width)], [outputs])
    assert_same(oracle.project(x, kind, raw), out[:n])
    assert np.all(out[n:].view(np.uint32) == 0xFFFFFFFF)
    assert chunk.fault() is None
    assert texts.inexact_sums == 0


@pytest.fixture
def hopper(shims):
    return shims("sm_90a", "tiles.cuh", "gemm.cuh", "gemm90.cuh")


K_QUANTS = (BlockType.Q4_K, BlockType.Q5_K, BlockType.Q6_K)


@pytest.mark.parametrize("kind", K_QUANTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("width", "outputs", "n", "processors"),
    [(256, 130, 17, 3), (768, 200, 130, 3), (1280, 384, 17, 2), (512, 40, 1, 4)],
)
def test_warpgroups_equal_the_oracle(hopper, rng, kind, width, outputs, n, processors):
    """Fewer tiles than processors, as many, and tiles that two processors share."""
    raw, x = random_blocks(rng, kind, outputs, width), rows_with_the_largest(rng, max(n, 9), width)
    x = x[:n]
    chunk = Chunk(hopper, kind, x, room=n + 128)
    (out,) = wide(chunk, [kind], [placed(kind, raw, width)], [outputs], processors)
    assert_same(oracle.project(x, kind, raw), out[:n])
    assert np.all(out[n:].view(np.uint32) == 0xFFFFFFFF)
    assert chunk.fault() is None
    assert hopper.inexact_sums == 0
