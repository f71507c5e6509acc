"""With nothing on the machine: the demo model is fetched, and it speaks."""

import json
from pathlib import Path

import pytest
from outcome import Command

from muser.kernels.compiler import isas_of, target_machine
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
    made = said[said.index("93 of 93 MB") + 1 :]
    assert made[0].startswith("Compiling the kernels for ")
    # Sets that read packed weights pack them once.
    assert all(line.startswith("Packing the weights ") for line in made[1:])
    assert len(made) <= 2
    lying = sorted(path.name for path in (tmp_path / "home" / "models").iterdir())
    assert lying == [".lock", CATALOGUE[0].file]
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")  # nobody listens there
    again = command(*ask)
    assert (again.status, again.out, again.err) == (0, " Paris.\n", "")


def test_every_instruction_set_draws_the_same_tokens(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = ("--temperature", "1", "--top-k", "0", "--seed", "4711", "-n", "12")
    records = {}
    for isa in isas_of(target_machine()):
        monkeypatch.setenv("MUSER_ISA", isa)
        outcome = command("run", "--json", "--hash-logits", *drawn, "The capital of France is")
        if f"cannot run the {isa} kernels" in outcome.err:  # any other refusal is a failure
            continue
        assert outcome.status == 0, outcome.err
        records[isa] = json.loads(outcome.out)
        assert records[isa]["libraries"].keys() == {f"cpu-{isa}"}
    if len(records) < 2:
        pytest.skip("this processor has plain C alone")
    for record in records.values():
        assert record["ids"] == records["c"]["ids"]
        assert record["logits_sha256"] == records["c"]["logits_sha256"]
