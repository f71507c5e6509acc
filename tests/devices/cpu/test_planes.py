"""K and V rows in and out of the CPU device's own layout."""

import numpy as np

from muser.devices.cpu.planes import Cache
from muser.graph import CacheSpec, oracle
from muser.kv import Geometry


def test_planes_keep_every_half_on_the_grid():
    """Codes and steps hold exactly the f16 rows that they were given."""
    spec = CacheSpec(2, 40, 8)
    cache = Cache.empty(spec, Geometry(8, 300, 16), 2, lanes=16)
    rng = np.random.default_rng(4)
    rows = oracle.snap_kv((rng.standard_normal((16, 80)) * 100).astype(np.float32), 2)
    cache.import_rows(1, 120, rows, -rows)
    keys, values = cache.export_rows(1, 120, 136)
    assert keys.tobytes() == rows.tobytes()
    assert np.array_equal(values, -rows)
    assert not cache.key.codes[0].any()
