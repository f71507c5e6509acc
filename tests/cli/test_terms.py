"""The question about a model's terms: by a flag, at a terminal, and where nobody can answer."""

import io
import sys
from pathlib import Path

import pytest
from outcome import Command

from muser.cli import terms as asking
from muser.cli.main import status_of
from muser.weights import fetch as fetching
from muser.weights.catalogue import Entry, named

GEMMA = "gemma3-270m"


@pytest.fixture(autouse=True)
def shop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands for the network: what is fetched is noted, and appears as an empty file."""
    fetched: list[str] = []

    def put(folder: Path, entry: Entry, watch: object) -> None:
        fetched.append(entry.name)
        entry.path.write_bytes(b"")

    monkeypatch.delenv("MUSER_ACCEPT_TERMS", raising=False)
    monkeypatch.setattr(fetching, "_fetch_into", put)
    monkeypatch.setattr(asking, "read_text", lambda terms: "The text\x1b[2J of the terms.")
    return fetched


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, *arguments: str
) -> tuple[int, str]:
    """The command's status and all that the person saw."""
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    return status_of([*arguments]), screen.getvalue()


def test_without_a_terminal_it_is_one_error(command: Command, shop: list[str]) -> None:
    for arguments in (("model", "fetch", GEMMA), ("run", "-m", GEMMA, "hi")):
        outcome = command(*arguments)
        assert outcome.status == 8
        assert outcome.out == ""
        assert "which nobody has accepted here." in outcome.err
        assert "--accept-terms" in outcome.err
    assert shop == []


def test_a_flag_accepts_once_and_for_all(command: Command, shop: list[str]) -> None:
    outcome = command("model", "fetch", GEMMA, "--accept-terms")
    gemma = named(GEMMA)
    assert gemma is not None
    assert (outcome.status, outcome.out) == (0, f"{gemma.path}\n")
    assert "https://ai.google.dev/gemma/terms" in outcome.err
    again = command("model", "fetch", GEMMA)
    assert (again.status, again.out) == (0, f"{gemma.path}\n")
    assert "accepted" not in again.err
    assert shop == [GEMMA, GEMMA]


def test_the_environment_is_not_remembered(
    command: Command, shop: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSER_ACCEPT_TERMS", "gemma")
    assert command("model", "fetch", GEMMA).status == 0
    monkeypatch.delenv("MUSER_ACCEPT_TERMS")
    assert command("model", "fetch", GEMMA).status == 8
    assert shop == [GEMMA]


@pytest.mark.parametrize(
    ("answer", "status"), [("y\n", 0), ("YES\n", 0), ("\n", 8), ("no\n", 8), ("", 8)]
)
def test_a_person_reads_and_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shop: list[str], answer: str, status: int
) -> None:
    got, seen = at_terminal(monkeypatch, tmp_path, answer, "model", "fetch", GEMMA)
    assert got == status
    assert "The text\u241b[2J of the terms." in seen
    assert "Do you accept them? [y/N]" in seen
    assert shop == [GEMMA] * (status == 0)
    if status:
        assert "its terms were not accepted" in seen


def test_a_person_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shop: list[str]
) -> None:
    assert at_terminal(monkeypatch, tmp_path, "y\n", "model", "fetch", GEMMA)[0] == 0
    status, seen = at_terminal(monkeypatch, tmp_path, "", "model", "fetch", GEMMA)
    assert (status, "Do you accept" in seen) == (0, False)


def test_the_list_names_it(command: Command) -> None:
    lines = command("model", "list").out.splitlines()
    assert any(line.startswith(GEMMA) and "Gemma terms" in line for line in lines)
