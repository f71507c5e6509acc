"""The vectors through every library's real code; one different word refuses the device."""

from dataclasses import replace

import pytest

from muser.devices.cpu.conformance import data, require_conformance, run_checks
from muser.errors import DeviceError
from muser.graph import conformance
from muser.kernels import Shelf


def test_every_library_passes_every_vector(libraries):
    for library in libraries.values():
        checks = dict(run_checks(library))
        digests = len(conformance.NORMS) + len(conformance.ATTENTION) + len(conformance.ROPES)
        assert len(checks) == 10 + 1 + digests + 2 * len(conformance.WEIGHTS) + 2
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
        *(
            ("WEIGHTS", (replace(vector, products="0"),), f"project_{vector.type.name.lower()}")
            for vector in conformance.WEIGHTS
        ),
        ("WEIGHTS", (replace(conformance.WEIGHTS[0], values="0"),), "embed_q4_k"),
        ("ROPES", (replace(conformance.ROPES[1], digest="0"),), "rope half_split"),
        ("SILU_GATE", "0", "silu_gate"),
        ("SOFTCAP", "0", "softcap"),
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
    monkeypatch.setattr("muser.devices.cpu.conformance.processor_of", lambda library: "this")
    require_conformance(library, shelf)
    monkeypatch.setattr("muser.devices.cpu.conformance.run_checks", lambda library: [("again", 1)])
    require_conformance(library, shelf)
    monkeypatch.setattr("muser.devices.cpu.conformance.data", lambda: b"other vectors")
    with pytest.raises(DeviceError, match="again"):
        require_conformance(library, shelf)


def test_vectors_are_known_by_their_texts():
    """What a pass is remembered for holds the very words that were compared."""
    assert conformance.NORMS[0].digest.encode() in data()
    assert b"def operator_checks" in data()
    assert b"inverse_root" in data()


@pytest.mark.parametrize("processor", ["another", None])
def test_a_pass_is_one_processors(libraries, tmp_path, monkeypatch, processor):
    """A home on a network is seen by several; one without a name passes at every start."""
    library, shelf = libraries["c"], Shelf(tmp_path)
    require_conformance(library, shelf)
    monkeypatch.setattr("muser.devices.cpu.conformance.processor_of", lambda library: processor)
    ran = []
    monkeypatch.setattr(
        "muser.devices.cpu.conformance.run_checks", lambda library: ran.append(1) or []
    )
    for _ in range(2):
        require_conformance(library, shelf)
    assert len(ran) == (1 if processor else 2)
