"""The vectors through the CUDA device's own pipelines; one different word refuses the device."""

from dataclasses import replace

import pytest

from muser.devices.cuda.conformance import require_conformance, run_checks
from muser.devices.cuda.driver import find_card, open_card
from muser.errors import DeviceError
from muser.graph import conformance
from muser.kernels import Shelf
from muser.kernels.cuda_registry import CHECKS
from tests.devices.cuda.fake_driver import Status
from tests.devices.cuda.shim_card import ShimCard, shim_library

VECTORS = ("NORMS", "ATTENTION", "WEIGHTS", "ROPES")


@pytest.mark.parametrize("architecture", ["sm_90a"])
def test_every_vector_passes(architecture):
    cards = []

    def opens():
        cards.append(ShimCard(architecture))
        return cards[-1]

    checks = dict(run_checks(opens, shim_library(architecture)))
    digests = len(conformance.NORMS) + 2 * len(conformance.ATTENTION) + len(conformance.ROPES)
    assert len(checks) == len(CHECKS) + 1 + digests + 2 * len(conformance.WEIGHTS) + 2
    assert {name for name, wrong in checks.items() if wrong} == set()
    played = set().union(*(card.played for card in cards))
    assert {"decode_one_64", "decode_tiles_256", "decode_deep_64", "decode_deep_128"} <= played


@pytest.fixture
def prove(tmp_path, monkeypatch):
    """`prove(NORMS=…)`: the proof with these vectors and no others; what the shelf kept of it."""

    def proof(**vectors):
        for name in VECTORS:
            monkeypatch.setattr(conformance, name, ())
        for name, value in vectors.items():
            monkeypatch.setattr(conformance, name, value)
        card, shelf = ShimCard("sm_90a"), Shelf(tmp_path)
        try:
            require_conformance(lambda: card, card.facts, shim_library("sm_90a"), shelf)
        finally:
            kept = [path.suffix for path in tmp_path.iterdir()]
        return kept, card.launches

    return proof


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("RNE", (("0x1.ce9d3cp0", 76),), "rne"),
        ("F32_TO_F16", (("0x1.002p0", 0x3C01),), "half"),
        ("EXP", (("0x1.6p3", "0x1.d3c446p+15"),), "exp"),
        ("GRID_STEP", -9, "kv_append"),
        ("NORMS", (conformance.NormVector(128, "0" * 16),), "norm of 128"),
        (
            "ATTENTION",
            (conformance.AttentionVector(64, 300, 0, 300, "0" * 16),),
            "attention 0000000000000000 of heads of 64",
        ),
        *(
            ("WEIGHTS", (replace(vector, products="0"),), f"project_{vector.type.name.lower()}")
            for vector in conformance.WEIGHTS[:1]
        ),
        ("WEIGHTS", (replace(conformance.WEIGHTS[-1], values="0"),), "embed_"),
        ("ROPES", (replace(conformance.ROPES[1], digest="0"),), "rope half_split"),
        ("SILU_GATE", "0", "silu_gate"),
        ("SOFTCAP", "0", "softcap"),
    ],
)
def test_one_different_word_refuses_the_device(prove, tmp_path, name, value, check):
    with pytest.raises(
        DeviceError, match=rf"the shim fails the conformance vectors: {check}.* differs"
    ):
        prove(**{name: value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [False, True], ids=["refused", "differs"])
def test_a_proof_that_fails_leaves_no_card_open(fake, tmp_path, monkeypatch, wrong):
    """A call that the driver refuses within a step, or a word that differs."""
    if wrong:
        first = replace(conformance.WEIGHTS[0], values="0")
        monkeypatch.setattr(conformance, "WEIGHTS", (first,))
    else:
        fake.answers["cuGraphLaunch"] = Status.CUDA_ERROR_INVALID_VALUE
    facts = find_card()[2]
    with pytest.raises(DeviceError, match="embed_.* differs" if wrong else "refused a call"):
        require_conformance(open_card, facts, shim_library("sm_90a"), Shelf(tmp_path))
    assert not fake.held
    assert fake.retained == 0


def test_a_runner_that_cannot_be_made_leaves_no_card_open(fake, tmp_path):
    fake.answers["cuMemAlloc"] = Status.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceError, match="out of memory"):
        require_conformance(open_card, find_card()[2], shim_library("sm_90a"), Shelf(tmp_path))
    assert not fake.held
    assert fake.retained == 0


def test_a_pass_is_remembered(prove):
    kept, launches = prove(NORMS=conformance.NORMS[:1])
    assert (kept, launches > 0) == ([".note"], True)
    assert prove(NORMS=conformance.NORMS[:1]) == ([".note"], 0)
