"""K and V rows in and out of the CPU device's own layout."""

import numpy as np
import pytest

from muser.devices.cpu.planes import Cache, Plane
from muser.graph import CacheSpec, oracle
from muser.kv import Geometry


@pytest.mark.parametrize(("group", "unit"), [(1, 1), (16, 2), (2, 1)])
def test_planes_keep_every_half_on_the_grid(group, unit):
    """Codes and steps hold exactly the f16 rows that they were given, however they are laid out."""
    spec, geometry = CacheSpec(2, 40, 8), Geometry(8, 300, 16)
    planes = [Plane.empty(spec, geometry.capacity, 2, 16, (group, unit)) for _ in "kv"]
    cache = Cache(spec, geometry, *planes)
    assert all(plane.codes.ctypes.data % 64 == 0 for plane in planes)
    rng = np.random.default_rng(4)
    rows = oracle.snap_kv((rng.standard_normal((16, 80)) * 100).astype(np.float32), 2)
    cache.import_rows(1, 120, rows, -rows)
    keys, values = cache.export_rows(1, 120, 136)
    assert keys.tobytes() == rows.tobytes()
    assert np.array_equal(values, -rows)
    assert not cache.key.codes[0].any()


def test_positions_lie_side_by_side():
    """Element e of position p stands at [p/G][e/U][p mod G][e mod U]."""
    plane = Plane.empty(CacheSpec(1, 18, None), 128, 1, 16, (16, 2))
    row = np.arange(18, dtype=np.float16).reshape(1, 1, 18)
    plane.put(0, np.array([37]), row)
    flat = plane.codes.reshape(-1)
    at = [37 // 16 * 16 * 32 + e // 2 * 32 + 37 % 16 * 2 + e % 2 for e in range(18)]
    assert flat[at].tolist() == plane.codes_of(0, np.array([37]))[0, 0, :18].tolist()
    assert np.count_nonzero(flat) == 17
