"""The CPU device: conformance, labels, opening by name."""

import errno
from types import SimpleNamespace

import numpy as np
import pytest

from muser.devices import CpuDevice, default_threads, open_device
from muser.devices.conformance import require_conformance, run_checks
from muser.devices.tape import Player
from muser.errors import DeviceError, LimitError
from muser.graph import conformance
from muser.kernels import Shelf


def test_every_library_passes_every_vector(libraries):
    for library in libraries.values():
        checks = dict(run_checks(library))
        assert len(checks) >= 8 + 1 + len(conformance.NORMS) + len(conformance.ATTENTION)
        assert {name for name, wrong in checks.items() if wrong} == set()


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("RNE", (("0x1.ce9d3cp0", 76),), "rne"),
        ("GRID_STEP", -9, "kv_append"),
        ("NORMS", (conformance.NormVector(128, "0" * 16),), "norm of 128"),
        (
            "ATTENTION",
            (conformance.AttentionVector(64, 300, 0, 300, "0" * 16),),
            "attention 0000000000000000",
        ),
    ],
)
def test_one_different_word_refuses_the_device(
    libraries, tmp_path, monkeypatch, name, value, check
):
    library = list(libraries.values())[-1]
    monkeypatch.setattr(conformance, name, value)
    shelf = Shelf(tmp_path)
    with pytest.raises(DeviceError, match=f"{check}.* differs"):
        require_conformance(library, shelf)
    assert list(tmp_path.iterdir()) == []


def test_a_pass_is_remembered_for_these_bytes_and_vectors(libraries, tmp_path, monkeypatch):
    library, shelf = libraries["c"], Shelf(tmp_path)
    require_conformance(library, shelf)
    monkeypatch.setattr("muser.devices.conformance.run_checks", lambda library: [("again", 1)])
    require_conformance(library, shelf)
    monkeypatch.setattr(conformance, "GRID_STEP", -9)
    with pytest.raises(DeviceError, match="again"):
        require_conformance(library, shelf)


def test_open_device():
    device = open_device("cpu", threads=2)
    assert (device.name, device.threads) == ("cpu", 2)
    assert open_device("oracle").name == "oracle"
    with pytest.raises(DeviceError, match="no device 'abacus'"):
        open_device("abacus")


def test_threads():
    assert CpuDevice().threads == default_threads() >= 1
    with pytest.raises(DeviceError, match="0 threads"):
        CpuDevice(threads=0)


def test_too_many_threads_are_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("muser.devices.cpu.choose_library", None)
    with pytest.raises(LimitError, match="at most 256"):
        CpuDevice(threads=257, shelf=Shelf(tmp_path))


def test_threads_that_the_system_refuses(libraries, monkeypatch):
    refusal = SimpleNamespace(open=lambda *args: errno.EAGAIN)
    monkeypatch.setattr("muser.devices.tape._Calls", lambda handle: refusal)
    with pytest.raises(DeviceError, match=r"refuses a pool of 200 threads \(.*unavail"):
        Player(libraries["c"], 200, 64)


def test_planes_keep_every_half_on_the_grid():
    """Codes and exponents hold exactly the f16 rows that they were given."""
    from muser.devices.planes import Cache
    from muser.graph import CacheSpec, oracle
    from muser.kv import Geometry

    spec = CacheSpec(2, 40, 8)
    cache = Cache.empty(spec, Geometry(8, 300, 16), 2, lanes=16)
    rng = np.random.default_rng(4)
    rows = oracle.snap_kv((rng.standard_normal((16, 80)) * 100).astype(np.float32), 2)
    cache.import_rows(1, 120, rows, -rows)
    keys, values = cache.export_rows(1, 120, 136)
    assert keys.tobytes() == rows.tobytes()
    assert np.array_equal(values, -rows)
    assert not cache.key.codes[0].any()
