"""Random Q4_K matrices and rows with the worst cases among them, and their oracle."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from muser.formats import BlockType
from muser.graph.oracle import project

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
CHUNK = 128


def matrix(rng: np.random.Generator, rows: int, columns: int) -> U8:
    """uint8 `[rows, bytes]`; row 0 has every code, scale and min at its maximum."""
    blocks = columns // 256
    raw = np.frombuffer(rng.bytes(rows * blocks * 144), np.uint8).reshape(rows, blocks, 144).copy()
    for at in (0, 2):
        scale = rng.uniform(2.0**-16, 2.0**-8, (rows, blocks)).astype(np.float16)
        raw[:, :, at : at + 2] = scale.view(np.uint8).reshape(rows, blocks, 2)
    raw[0, :, 4:] = 0xFF
    return raw.reshape(rows, blocks * 144)


def activations(rng: np.random.Generator, rows: int, columns: int) -> F32:
    """Normal numbers, some large; row 0 has every code at 127, row 1 at ±127, row 2 zero blocks."""
    x = rng.standard_normal((rows, columns), np.float32)
    x[:, :: columns // 16] *= np.float32(20)
    x[0] = 1.5
    x[1] = np.where(np.arange(columns) % 2, 1.5, -1.5)
    x[2, 256:512] = 0
    return x


def projected(x: F32, raw: U8) -> F32:
    """The oracle's `[rows of x, rows of raw]`, on all cores."""
    parts = [raw[i : i + CHUNK] for i in range(0, len(raw), CHUNK)]
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda part: project(x, BlockType.Q4_K, part), parts))
    return np.concatenate(done, axis=1)


def different(a: NDArray[np.generic], b: NDArray[np.generic]) -> int:
    """Words that are not the same bits."""
    left, right = (np.ascontiguousarray(x).view(np.uint32) for x in (a, b))
    return int(np.count_nonzero(left != right)) if left.shape == right.shape else left.size
