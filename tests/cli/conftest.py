"""The command line in this process: arguments and standard input in, output and status out."""

import io
import sys
from pathlib import Path

import pytest
from outcome import Command, Outcome

from muser.cli.main import status_of


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run `muser ARGUMENTS` with an empty MUSER_HOME."""
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MUSER_DEBUG", raising=False)

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        status = status_of(list(arguments))
        return Outcome(status, *capsys.readouterr())

    return run
