"""`muser model synth`: what it takes, what it refuses, what it says."""

from pathlib import Path

import pytest
from outcome import Command

from muser.cli import model_synth
from muser.cli.progress import Lines


def made(command: Command, out: Path, *flags: str) -> bytes:
    outcome = command("model", "synth", str(out), *flags)
    assert (outcome.status, outcome.err) == (0, "")
    return out.read_bytes()


def test_a_file_is_replaced_only_by_force(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    first = made(command, out)
    outcome = command("model", "synth", str(out), "--seed", "1")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == (
        f"error: {out} exists.\nName another file, or replace it with --force.\n"
    )
    assert out.read_bytes() == first
    assert made(command, out, "--seed", "1", "--force") != first


def test_a_folder_is_never_replaced(command: Command, tmp_path: Path) -> None:
    outcome = command("model", "synth", str(tmp_path), "--force")
    assert outcome.status == 2
    assert outcome.err.startswith(f"error: {tmp_path} is not a file.\n")


def test_types_are_named_in_either_case(command: Command, tmp_path: Path) -> None:
    lower = made(command, tmp_path / "lower.gguf", "--weights", "q4_k")
    assert made(command, tmp_path / "upper.gguf", "--weights", "Q4_K") == lower
    outcome = command("model", "synth", str(tmp_path / "x"), "--weights", "q9")
    assert outcome.status == 2
    assert "Q8_0, or census." in outcome.err
    assert "Q4_K" in command("model", "synth", "--help").out


def test_a_twin_is_like_a_name_or_a_path(command: Command, tmp_path: Path) -> None:
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    original = made(command, models / "mine.gguf")
    for like in ("mine", "mine.gguf", str(models / "mine.gguf")):
        assert made(command, tmp_path / "twin.gguf", "--like", like, "--force") == original
    outcome = command("model", "synth", str(tmp_path / "x"), "--like", "nothing")
    assert outcome.status == 2
    assert outcome.err.startswith("error: No model is named 'nothing'.\n")


def test_progress_has_its_total(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    class Watch(Lines):
        def advance(self, done: int, total: int) -> None:
            told.append((done, total))

    class Watching:
        def __enter__(self) -> Watch:
            return Watch()

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(model_synth, "watching", lambda what: Watching())
    size = len(made(command, tmp_path / "x.gguf"))
    assert {total for _, total in told} == {size}
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (size, size)
