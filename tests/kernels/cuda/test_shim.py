"""The shim itself: fragments against NumPy, and every misuse that it promises to name."""

import mmap
import struct

import numpy as np
import pytest

from .memory import LEAST
from .shim import ON_CARD, Shim, ShimFailure, address, device, poisoned

misuse = pytest.mark.skipif(ON_CARD, reason="what is wrong is told by the shim, not by a card")


@pytest.fixture(scope="module")
def units():
    return Shim(("texts/units.cuh",), "sm_80")


@pytest.fixture(scope="module")
def groups():
    return Shim(("texts/groups.cuh",), "sm_90a")


@pytest.fixture(scope="module")
def wrong():
    return Shim(("texts/wrong.cuh",), "sm_90")


def pointers(*arrays):
    return struct.pack(f"{len(arrays)}Q", *map(address, arrays))


def test_half_products(units, rng, seed):
    a, b = (rng.integers(-99, 99, shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    a, b, out = device(a), device(b), poisoned((16, 8), np.float32)
    units.launch("f16", 1, 32, pointers(a, b, out), seed=seed)
    begin = np.tile(np.array([[1, 2], [3, 4]], np.float32).repeat(8, 0), (1, 4))
    assert np.array_equal(out, begin + a.astype(np.float32) @ b.astype(np.float32))
    assert units.inexact_sums == 0


@pytest.mark.parametrize(("kernel", "kind"), [("s8", np.int8), ("u8s8", np.uint8)])
def test_byte_products(units, rng, kernel, kind):
    a = device(rng.integers(0, 256, (16, 32)).astype(np.uint8).view(kind))
    b, out = device(rng.integers(-128, 128, (8, 32)).astype(np.int8)), poisoned((16, 8), np.int32)
    units.launch(kernel, 1, 32, pointers(a, b, out))
    assert np.array_equal(out, a.astype(np.int32) @ b.astype(np.int32).T)


@misuse
def test_a_sum_that_no_f32_holds_is_counted(units):
    shim = Shim(("texts/units.cuh",), "sm_80")
    a, b = (device(np.full(shape, 2047, np.float16)) for shape in ((16, 16), (16, 8)))
    a[0, 0], out = 1, poisoned((16, 8), np.float32)
    shim.launch("f16", 1, 32, pointers(a, b, out))
    assert shim.inexact_sums > 0


def exchanged(matrix):
    """Rows of 128 bytes as the matrix units want them: piece p of 16 of row r at p ^ (r % 8)."""
    pieces = matrix.view(np.uint8).reshape(len(matrix), 8, 16)
    rows = np.arange(len(matrix))[:, None]
    return device(pieces[rows, np.arange(8) ^ rows % 8])


@pytest.mark.parametrize("kernel", ["halves", "turned", "bytes", "unsigned_bytes"])
def test_group_products(groups, rng, kernel, seed):
    raw = [rng.integers(0, 256, (rows, 128)).astype(np.uint8) for rows in (64, 128)]
    kinds = {"bytes": np.int8, "unsigned_bytes": np.uint8}
    if kernel in kinds:
        a, b, out = device(raw[0].view(kinds[kernel])), device(raw[1].view(np.int8)), np.int32
        expected = a.astype(np.int64) @ b.astype(np.int64).T
    else:
        a, b = (device(rng.integers(-99, 99, (rows, 64)).astype(np.float16)) for rows in (64, 128))
        out = np.float32
        second = b[:64] if kernel == "turned" else b.T
        expected = a.astype(np.float64) @ second.astype(np.float64)
    out = poisoned(expected.shape, out)
    a, b = exchanged(a), exchanged(b)
    groups.launch(kernel, 1, 128, pointers(a, b, out), shared=8192 + 16384, seed=seed)
    assert np.array_equal(out, expected.astype(out.dtype))


def play(shim, mode, seed=0, zero=0, kernel="wrong"):
    x, y = device(np.arange(64, dtype=np.float32)), poisoned((64,), np.float32)
    argument = pointers(x, y) + struct.pack("ii", mode, zero)
    shim.launch(kernel, 1, 64, argument, shared=64, seed=seed)
    return x, y


@pytest.mark.parametrize("offset", [None, -4, 600], ids=["elsewhere", "before", "behind"])
def test_memory_that_is_not_the_cards_is_refused(wrong, offset):
    """A process can read its own, and the shim's kernels are of that process; a card cannot."""
    mine, theirs = device(np.zeros(64, np.float32)), mmap.mmap(-1, 256)
    base = np.frombuffer(theirs, np.float32) if offset is None else mine
    if base.ctypes.data < LEAST:
        pytest.skip("this system's addresses are not told from two int32")
    argument = struct.pack("QQii", base.ctypes.data + (offset or 0), address(mine), 0, 0)
    with pytest.raises(ShimFailure, match="byte 0 of its argument points to no memory of the card"):
        wrong.launch("wrong", 1, 64, argument, shared=64)


def test_an_array_that_is_not_the_cards_has_no_address():
    assert address(None) == 0
    with pytest.raises(ShimFailure, match="a launch may point only to what"):
        address(np.zeros(64, np.float32))


@pytest.mark.parametrize("grid", [0, (3, 0), (1, 1, 0), (1, 65536), (1, 1, 65536)], ids=str)
def test_a_grid_that_no_card_takes_is_refused(wrong, grid):
    x, y = device(np.arange(64, dtype=np.float32)), poisoned((64,), np.float32)
    argument = pointers(x, y) + struct.pack("ii", 0, 0)
    with pytest.raises(ShimFailure, match=r"no blocks|65,535 blocks|CUDA_ERROR_INVALID_VALUE"):
        wrong.launch("wrong", grid, 64, argument, shared=64)
    assert (y.view(np.uint8) == 0xFF).all()


def test_right_use_passes(wrong, seed):
    x, y = play(wrong, 0, seed)
    assert np.array_equal(y, x[::-1])


@misuse
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (1, "without previous_kernel_done"),
        (3, "deadlock.*wait at __reduce_sync"),
        (4, "divergence in warp 0"),
        (5, "wrote byte 0 beyond its 64 bytes"),
        (6, "an address that is nobody's"),
        (7, "misaligned"),
        (8, "index out of bounds"),
        (9, "named_sync: barrier 1 of 96 threads"),
        (10, "no barrier was made"),
        (11, "bulk copies were under way"),
        (
            12,
            "deadlock.*threads 0 to 31 wait at named_sync 2; threads 32 to 63 wait at named_sync 3",
        ),
        (15, "deadlock: all threads that go on poll for what nobody writes"),
    ],
)
def test_wrong_use_is_named(wrong, mode, said):
    with pytest.raises(ShimFailure, match=said):
        play(wrong, mode)


@misuse
def test_a_missing_barrier_shows(wrong, seed):
    x, y = play(wrong, 2, seed)
    assert not np.array_equal(y, x[::-1])


@misuse
def test_a_warp_that_runs_ahead_shows_what_a_second_barrier_is_for(wrong):
    """Fibers that go on in turn do not: only an even seed lets one warp overtake another."""
    right = [play(wrong, 0, seed, kernel="twice")[1] for seed in range(9)]
    assert all(np.array_equal(y, right[0]) for y in right)
    raced = [play(wrong, 0, seed, zero=1, kernel="twice")[1] for seed in (2, 4, 6, 8)]
    assert not all(np.array_equal(y, right[0]) for y in raced)


@misuse
def test_a_missing_wait_for_copies_shows(wrong):
    """Mode 13 stores 64 zeros by hand, copies over them, and reads without a wait."""
    _, y = play(wrong, 13)
    assert np.array_equal(y, np.zeros(64, np.float32))


def test_named_barriers_of_some_warps(wrong):
    play(wrong, 9, zero=1)
