"""Weights that lie in no file, and what was packed of them."""

import numpy as np

from tests.kernels.bench import Tensors, random_blocks


def source_of(kind, width, out, seed=3):
    tensors = Tensors()
    tensors.put("w", kind, random_blocks(np.random.default_rng(seed), kind, out, width), width)
    return tensors


def same(left, right):
    return left.keys() == right.keys() and all(
        left[name].tobytes() == right[name].tobytes() for name in left
    )
