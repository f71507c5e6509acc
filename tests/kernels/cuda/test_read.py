"""Reading for its own sake: every 16 bytes once, whatever the number of threads."""

import ctypes

import numpy as np
import pytest

from muser.devices.cuda.roof import ReadThrough

from .shim import address, device, poisoned

THREADS = 256


@pytest.fixture
def read(shims):
    return shims("sm_90a", "read.cuh")


def launch(shim, data, blocks, count, seed=0):
    sums = poisoned((blocks * THREADS,), np.uint64)
    argument = ReadThrough(address(data), address(sums), count)
    assert ctypes.sizeof(argument) == 24
    shim.launch("read_through", blocks, THREADS, argument, seed=seed)
    return sums


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("count", [1, 255, 257, 768, 2048, 6144, 6145, 20001])
def test_every_word_is_added_once(read, rng, blocks, count):
    data = device(rng.integers(0, 1 << 64, 2 * count, np.uint64))
    sums = launch(read, data, blocks, count, seed=count % 3)
    quads = data.reshape(-1, 2).sum(axis=1, dtype=np.uint64)
    for thread, found in enumerate(sums):
        assert found == quads[thread :: blocks * THREADS].sum(dtype=np.uint64)


def test_nothing_to_read_writes_nothing(read):
    sums = launch(read, device(np.zeros(2, np.uint64)), 2, 0)
    assert (sums.view(np.uint8) == 0xFF).all()
