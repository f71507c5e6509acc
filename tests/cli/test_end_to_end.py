"""The whole way from a synthetic file to a record, through the real engine."""

import json
from pathlib import Path
from typing import Any

import pytest
from outcome import Command

from muser import places

ARCHITECTURES = ("llama", "muse-glimmer", "gemma3")


@pytest.fixture(scope="session")
def shelf() -> Path:
    """Where compiled kernels usually lie: made before any test changes MUSER_HOME."""
    folder = places.libraries()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, shelf: Path, command: Command, tmp_path: Path) -> str:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "libraries").symlink_to(shelf)  # compiling takes seconds
    path = tmp_path / "tiny.gguf"
    outcome = command("model", "synth", str(path), "--arch", request.param, "--layers", "2")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{path}: {request.param}, ")
    return str(path)


def record(command: Command, *arguments: str) -> dict[str, Any]:
    fixed = ("--json", "--hash-logits", "--raw", "-n", "4", "--ignore-eos")
    outcome = command("run", *fixed, *arguments)
    said = [line for line in outcome.err.splitlines() if not line.startswith("Compiling the ker")]
    assert (outcome.status, said) == (0, [])
    made: dict[str, Any] = json.loads(outcome.out)
    return made


def test_a_record_does_not_depend_on_device_or_threads(command: Command, model: str) -> None:
    records = [
        record(command, "--model", model, "abc", *flags)
        for flags in ([], ["--threads", "1"], ["--device", "oracle"])
    ]
    answers = [
        {key: made[key] for key in ("prompt_ids", "ids", "text", "finish_reason", "logits_sha256")}
        for made in records
    ]
    assert answers[0] == answers[1] == answers[2]
    assert len(records[0]["ids"]) == 4
    assert records[0]["libraries"]
    assert records[0]["labels"]


def test_the_same_seed_draws_the_same_tokens(command: Command, model: str) -> None:
    flags = ("--model", model, "--temperature", "1", "--top-k", "0", "abc")
    first, again, other = (record(command, *flags, "--seed", seed) for seed in ("7", "7", "8"))
    assert (first["ids"], first["seed"]) == (again["ids"], 7)
    assert first["ids"] != other["ids"]


def test_tokenize_gives_the_ids_of_the_prompt(command: Command, model: str) -> None:
    ids = json.loads(command("tokenize", "--model", model, "--json", stdin=b"abc").out)["ids"]
    assert ids == record(command, "--model", model, "abc")["prompt_ids"]
    lines = command("tokenize", "--model", model, stdin=b"abc").out.splitlines()
    assert [int(line.split("\t")[0]) for line in lines] == ids


def test_a_request_that_does_not_fit_is_refused(command: Command, model: str) -> None:
    outcome = command("run", "--model", model, "--raw", "--ctx-size", "8", "-n", "9", "abc")
    assert outcome.status == 7
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == 2


def test_a_device_that_is_not_there_is_named(command: Command, model: str) -> None:
    outcome = command("run", "--model", model, "--device", "metal", "x")
    assert outcome.status == 5
    assert outcome.err.startswith("error: There is no device 'metal'.")


def test_dry_finds_its_breakers_and_changes_the_choice(command: Command, model: str) -> None:
    prompt = ("--model", model, "xyzxyzxy")
    free = record(command, *prompt)["ids"]
    strong = ("--dry-multiplier", "1000", "--dry-allowed-length", "1")
    weak = ("--dry-multiplier", "1e-30", "--dry-allowed-length", "1")
    assert record(command, *prompt, *weak)["ids"] == free
    penalised = [record(command, *prompt, *strong, "--dry-last-n", n)["ids"] for n in ("-1", "0")]
    assert penalised[1] == free
