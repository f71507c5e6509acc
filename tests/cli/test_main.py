"""Every way a command can end has its message and its exit status."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from outcome import Command

from muser import errors
from muser.cli import model_list
from muser.cli.main import status_of
from muser.weights.catalogue import DEFAULT

SNIPPET = "from muser.cli import main; main()"


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from muser.cli.main import status_of; status = status_of(['--help']);"
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'muser.engine'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("│ ")]
    told = {line[1] for line in lines if len(line) > 3}
    assert {"run", "tokenize", "model", "kernels", "doctor", "bench"} <= told


def test_a_command_imports_no_other() -> None:
    probe = (
        "import sys; from muser.cli.main import status_of; status = status_of(['model', 'list']);"
        "others = {f'muser.cli.{name}' for name in ('run', 'bench', 'doctor', 'kernels')};"
        "found = others & set(sys.modules); sys.exit(f'imported {found}' if found else status)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["run", "tokenize"])
def test_help_names_the_model_that_is_taken(command: Command, name: str) -> None:
    assert f"default {DEFAULT}" in command(name, "--help").out


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
        (["run", "-n", "1.5", "x"], 'unable to convert "1.5" into int'),
        (["run", "--seed", "1_0", "x"], 'unable to convert "1_0" into int'),
        (["model", "synth", "x", "--layers", "2.5"], 'unable to convert "2.5" into int'),
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
    named = [word for word in arguments if word in ("run", "model", "synth", "show")]
    assert second == f"See `{' '.join(['muser', *named])} --help`."


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
        (errors.StorageError, 9),
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


def test_control_characters_do_not_reach_the_terminal(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, errors.ModelError("It says \x1b[31m\nerror: no\x7f\x9b.", "Mend it."))
    assert command("model", "list").err == "error: It says ␛[31m error: no␡\ufffd.\nMend it.\n"


def test_what_the_system_refuses_is_no_defect(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, FileNotFoundError(2, "No such file or directory", "/away"))
    outcome = command("model", "list")
    assert outcome.status == 9
    assert outcome.err.startswith("error: No such file or directory: /away.\n")
    raising(monkeypatch, MemoryError("Unable to allocate 2 TiB"))
    outcome = command("model", "list")
    assert outcome.status == 7
    assert outcome.err.startswith("error: There is not enough memory: Unable to allocate 2 TiB.\n")


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


@pytest.mark.parametrize("arguments", [["model", "list"], ["run", "--help"]])
def test_a_full_disk_behind_stdout(tmp_path: Path, arguments: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full:
        done = begun(arguments, tmp_path, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 9
    assert done.stderr.startswith(b"error: No space left on device.\n")


def test_help_for_a_reader_that_goes_away(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = begun(["run", "--help"], tmp_path, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_closed_stream_is_no_defect(tmp_path: Path, number: int) -> None:
    shell = f'exec "$0" -c "$1" model list {number}>&-'
    done = subprocess.run(
        ["/bin/sh", "-c", shell, sys.executable, SNIPPET],
        capture_output=True,
        env={**os.environ, "MUSER_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"smollm2" in done.stdout) == (number != 1)


def test_an_error_that_nobody_can_read_keeps_its_status(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = begun(["run", "--seed"], tmp_path, stdout=subprocess.PIPE, stderr=writing)
    os.close(writing)
    assert (done.returncode, done.stdout) == (2, b"")


def test_every_character_can_be_printed(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "é.gguf").touch()
    done = begun(
        ["model", "list"],
        tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="ascii",
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xe9.gguf" in done.stdout


def test_an_interrupt_while_modules_load_is_quiet() -> None:
    probe = (
        "import os, signal, sys\n"
        "class Press:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'cyclopts': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "from muser.__main__ import start; start()"
    )
    done = subprocess.run([sys.executable, "-c", probe, "model", "list"], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_interrupt_after_the_work_changes_nothing(tmp_path: Path) -> None:
    probe = (
        "import atexit, os, signal\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from muser.__main__ import start; start()"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, "model", "list"],
        capture_output=True,
        env={**os.environ, "MUSER_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"smollm2" in done.stdout


def test_what_was_left_for_the_end_is_done() -> None:
    """Exit functions and streams, though the interpreter is not taken apart."""
    probe = (
        "import atexit, sys; from muser.cli.console import leave\n"
        "atexit.register(lambda: print('at the end'))\n"
        "print('begun', end=' '); sys.stderr.write('said'); leave(7)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"begun at the end\n", b"said")


def test_leaving_when_nobody_reads() -> None:
    probe = "import sys; from muser.cli.console import leave; sys.stdout.write('x'); leave(3)"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", probe],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (3, b"")


def begun(
    arguments: list[str], home: Path, *, encoding: str = "utf-8", **streams: Any
) -> subprocess.CompletedProcess[bytes]:
    """`muser` in a process of its own."""
    environment = {**os.environ, "MUSER_HOME": str(home), "PYTHONIOENCODING": encoding}
    return subprocess.run([sys.executable, "-c", SNIPPET, *arguments], env=environment, **streams)


def raising(monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    def broken() -> None:
        raise problem

    monkeypatch.setattr(model_list, "list_models", broken)
