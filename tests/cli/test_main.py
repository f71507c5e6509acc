"""Every way a command can end has its message and its exit status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from outcome import Command

from muser import errors
from muser.cli import model_list
from muser.cli.main import status_of

SNIPPET = "from muser.cli import main; main()"


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from muser.cli.main import status_of; status = status_of(['--help']);"
        "heavy = {'numpy', 'tokenizers', 'minijinja', 'muser.engine'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("run", "tokenize", "model"):
        assert f"│ {name} " in done.stdout


def test_version_is_one_line(command: Command) -> None:
    outcome = command("--version")
    assert outcome.status == 0
    assert len(outcome.out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rum"], 'Unknown command "rum". Did you mean "run"?'),
        (["run", "--sead", "1"], "Unknown option: --sead."),
        (["run", "--seed"], "--seed requires an argument"),
        (["run", "-n", "many", "x"], 'unable to convert "many" into int'),
        (["model", "show"], "requires an argument"),
    ],
)
def test_a_flag_that_is_not_understood(
    command: Command, arguments: list[str], sentence: str
) -> None:
    outcome = command(*arguments)
    assert outcome.status == 2
    assert outcome.out == ""
    first, second = outcome.err.splitlines()
    assert first.startswith("error: ")
    assert sentence in first
    assert second == "See `muser --help`."


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.UsageError, 2),
        (errors.FormatError, 3),
        (errors.ModelError, 4),
        (errors.DeviceError, 5),
        (errors.ArithmeticFault, 6),
        (errors.LimitError, 7),
        (errors.FetchError, 8),
    ],
)
def test_an_error_is_two_lines_and_its_status(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[errors.MuserError],
    status: int,
) -> None:
    raising(monkeypatch, kind("It broke.", "Mend it."))
    outcome = command("model", "list")
    assert (outcome.status, outcome.err) == (status, "error: It broke.\nMend it.\n")


def test_a_defect_is_one_line_and_how_to_report_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, ZeroDivisionError("oh\nno"))
    outcome = command("model", "list")
    assert outcome.status == 1
    first, second = outcome.err.splitlines()
    assert first == "error: ZeroDivisionError: oh no"
    assert "MUSER_DEBUG=1" in second


def test_debugging_shows_the_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ZeroDivisionError())
    monkeypatch.setenv("MUSER_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        status_of(["model", "list"])


def test_an_interrupt_is_quiet(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    outcome = command("model", "list")
    assert (outcome.status, outcome.out, outcome.err) == (130, "", "")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET, "model", "list"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "MUSER_HOME": str(tmp_path)},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def raising(monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    def broken() -> None:
        raise problem

    monkeypatch.setattr(model_list, "list_models", broken)
