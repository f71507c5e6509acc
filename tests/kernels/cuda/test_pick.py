"""Wanted rows and the first token of each, equal to the oracle."""

import numpy as np
import pytest

from muser.graph import oracle

from ..bench import random_rows, same_bits
from .launching import Play, orders, structure
from .shim import poisoned


@pytest.fixture
def texts(shims):
    return shims("sm_90a", "pick.cuh")


def take(shim, x, outputs, block=64, seed=0):
    width = x.shape[1]
    play = Play(len(outputs), len(x), outputs=np.array(outputs))
    rows = poisoned(x.shape, np.float32)
    rows[:] = x
    argument = structure(rows=rows, step=play.step(), width=width, spare=0)
    shim.launch("take_rows", -(-width // (4 * block)), block, argument, seed=seed)
    return rows


@pytest.mark.parametrize("width", [1, 50, 256, 1023, 6656])
def test_take_rows(texts, rng, width):
    x = random_rows(rng, 41, width)
    wanted = [
        [0],
        [40],
        [0, 3, 4, 17, 40],
        list(range(41)),
        list(range(1, 41)),
        [0, 1, 2, *range(9, 35)],
        sorted(rng.permutation(41)[:20]),
    ]
    for i, outputs in enumerate(wanted):
        rows = take(texts, x, outputs, block=(32, 64, 256)[i % 3], seed=i)
        assert same_bits(x[outputs], rows[: len(outputs)])
        assert same_bits(x[len(outputs) :], rows[len(outputs) :])


def argmax(shim, play, x, parts, seed=0):
    width, source = x.shape[1], play.source(x)
    keys = poisoned((play.bucket, parts), np.uint64)
    ids = poisoned((play.bucket, 1), np.int32)
    step = play.step()
    argument = structure(x=source, parts=keys, step=step, width=width, spare=0)
    shim.launch("argmax_parts", (parts, play.bucket), 256, argument, seed=seed)
    argument = structure(parts=keys, ids=ids, step=step, count=parts, spare=0)
    shim.launch("argmax", play.bucket, 32, argument, seed=seed)
    return play.results(ids)[:, 0]


@pytest.mark.parametrize(("width", "parts"), [(1, 1), (50, 3), (1027, 2), (32000, 16), (4096, 24)])
def test_argmax(texts, rng, width, parts):
    x = random_rows(rng, 64, width)
    x[10] = -np.abs(x[10]) - 1
    x[12:20, width // 2] = x[12:20, width // 3] = 2**21  # ties go to the lower id
    x[20, width - 1] = x[21, 0] = 2**21
    expected = oracle.argmax(x).astype(np.int32)
    for count, bucket, seed in orders():
        actual = argmax(texts, Play(count, bucket), x, parts, seed)
        assert np.array_equal(expected[:count], actual)


def test_argmax_of_a_large_vocabulary(texts, rng):
    x = random_rows(rng, 2, 202048)
    x[1, [150000, 202047]] = 9
    assert np.array_equal(oracle.argmax(x), argmax(texts, Play(2, 4), x, 99))
