"""Cache geometry as integers."""

import pytest

from muser.kv import TILE, Geometry


@pytest.mark.parametrize("window", [None, 1, 8, 128, 2048])
@pytest.mark.parametrize("chunk", [1, 7, 128, 512])
def test_a_whole_chunk_and_every_window_in_it_fit(window, chunk):
    geometry = Geometry(window, 5000, chunk)
    assert geometry.capacity % TILE == 0
    for start in (0, 100, 2500, 5000 - chunk):
        last = start + chunk - 1
        first = geometry.visible(start)[0]
        stored = {geometry.index(p) for p in range(first, last + 1)}
        assert len(stored) == last + 1 - first


def test_a_tile_never_wraps():
    geometry = Geometry(8, 10_000, 20)
    for tile in range(50):
        first = geometry.index(tile * TILE)
        assert [geometry.index(tile * TILE + i) for i in range(TILE)] == list(
            range(first, first + TILE)
        )


def test_visible_rows():
    assert Geometry(None, 100, 1).visible(42) == (0, 43)
    assert Geometry(8, 100, 1).visible(42) == (35, 43)
    assert Geometry(8, 100, 1).visible(3) == (0, 4)


def test_a_ring_is_never_larger_than_the_context():
    assert Geometry(2048, 300, 512).capacity == 384
    assert Geometry(2048, 131072, 512).capacity == 2560


@pytest.mark.parametrize("length", [1, 255, 256, 300, 1000])
def test_rewinding_keeps_every_window_whole(length):
    geometry = Geometry(8, 10_000, 20)
    shortest = geometry.rewindable(length)
    held = range(max(0, length - geometry.capacity), length)
    assert geometry.visible(shortest)[0] >= held.start
    assert Geometry(None, 10_000, 20).rewindable(length) == 0
