"""The prompt comes from exactly one place, as text that is UTF-8."""

import io
import os
import sys
from pathlib import Path

import pytest

from muser.cli.prompt import asked, given
from muser.errors import UsageError


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes, kind: type = io.TextIOWrapper) -> None:
    monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(data), "utf-8"))


def test_the_argument_wins_over_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"piped")
    assert given("said", None) == "said"


def test_one_newline_at_the_end_is_not_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "späte Zeile\n\n".encode())
    assert given(None, None) == "späte Zeile\n"
    (tmp_path / "file").write_bytes(b"filed\r\n")
    assert given(None, tmp_path / "file") == "filed"


def test_a_person_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, b"typed\nmore\n", Terminal)
    assert given(None, None) is None
    assert asked() == "typed"
    assert capsys.readouterr() == ("", "> ")


def test_a_hyphen_is_standard_input_even_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for prompt, file in (("-", None), (None, Path("-"))):
        pipe(monkeypatch, b"typed\nmore\n", Terminal)
        assert given(prompt, file) == "typed\nmore"


def test_what_is_no_prompt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"")
    with pytest.raises(UsageError, match="holds no prompt"):
        given(None, None)
    with pytest.raises(UsageError, match="also a file"):
        given("said", tmp_path / "file")
    with pytest.raises(UsageError, match=r"cannot be read: No such file.* Give -f a text file"):
        given(None, tmp_path / "file")
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory.* Give -f a text file"):
        given(None, tmp_path)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="holds no prompt"):
        given(None, None)


def test_bytes_that_are_not_utf8_are_located(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"abc\xffd")
    with pytest.raises(UsageError, match="Standard input is not UTF-8 at byte 3"):
        given(None, None)
    with pytest.raises(UsageError, match="The prompt is not UTF-8 at byte 2"):
        given(os.fsdecode(b"ab\xff"), None)
