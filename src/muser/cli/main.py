"""The `muser` command: what is said and returned when something goes wrong.

Exit statuses: 0 done, 1 a defect of Muser, 2 to 11 the class of the error (`muser.errors`),
130 interrupted, 141 the reader of the output went away, 143 terminated.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from cyclopts import App
from cyclopts.exceptions import CycloptsError

from muser.cli.console import in_two_lines, leave, one_line, prepare
from muser.cli.words import complaint, hyphenated
from muser.errors import Cancelled, LimitError, MuserError, StorageError

COMMANDS: Mapping[str, str] = {
    "run": "muser.cli.run:run",
    "tokenize": "muser.cli.tokenize:tokenize",
    "model": "muser.cli.model:model_app",
    "kernels": "muser.cli.kernels:kernels_app",
    "doctor": "muser.cli.doctor:doctor",
    "bench": "muser.cli.bench:bench_app",
}
DEFECT = 1
READER_GONE = 141


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("muser")
    except PackageNotFoundError:
        return "unknown (not installed)"


def build(arguments: Sequence[str] = ()) -> App:
    """The command tree; where a command is named, its module alone is imported."""
    app = App(
        name="muser",
        help="Runs GGUF language models with the same bits everywhere.",
        help_format="plaintext",
        version=_version,
        version_flags=["--version"],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    named = arguments[0] if arguments and arguments[0] in COMMANDS else None
    for name, where in COMMANDS.items():
        # What is not imported has no line in the help of them all.
        is_away = named is not None and name != named
        app.command(where if is_away else _imported(where), name=name)
    return app


def _imported(where: str) -> Any:
    """A command's function, or the commands that a function of that name makes."""
    module, _, name = where.partition(":")
    found = getattr(import_module(module), name)
    return found() if name.endswith("_app") else found


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave the process with its exit status."""
    prepare()
    status = status_of(sys.argv[1:] if arguments is None else list(arguments))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done; only the end is left
    leave(status)


def status_of(arguments: list[str]) -> int:
    """Run one command; every way it can end becomes a message and an exit status."""
    try:
        words = hyphenated(arguments)
        build(words)(words, exit_on_error=False, print_error=False)
        sys.stdout.flush()
        return 0
    except CycloptsError as problem:
        return _complain(complaint(problem, arguments))
    except Cancelled as problem:
        return problem.exit_status
    except MuserError as problem:
        return _complain(problem)
    except KeyboardInterrupt:
        return Cancelled.exit_status
    except BrokenPipeError:
        _silence_stdout()
        return READER_GONE
    except OSError as problem:
        return _complain(_refused(problem))
    except MemoryError as problem:
        return _complain(_too_large(problem))
    except SystemExit as leaving:
        # The library that writes the help answers a closed pipe so.
        return READER_GONE if leaving.code == 1 else _reraised(leaving)
    except Exception as problem:
        return _defect(problem)


def _silence_stdout() -> None:
    """Python flushes stdout once more when it ends: give it somewhere harmless to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reraised(leaving: SystemExit) -> int:
    raise leaving


def _refused(problem: OSError) -> MuserError:
    where = f": {problem.filename}" if problem.filename is not None else ""
    return StorageError(
        f"{problem.strerror or problem}{where}.",
        "Check the path and its permissions, and that the disk has room.",
    )


def _too_large(problem: MemoryError) -> MuserError:
    what = str(problem) or "the system gives no more"
    return LimitError(
        f"There is not enough memory: {what}.", "Choose a smaller --ctx-size or a smaller model."
    )


def _complain(problem: MuserError) -> int:
    if os.environ.get("MUSER_DEBUG") == "1":
        raise problem
    _say(in_two_lines(problem))
    return problem.exit_status


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        return  # nobody is there to be told; the exit status is


def _defect(problem: Exception) -> int:
    if os.environ.get("MUSER_DEBUG") == "1":
        raise problem
    what = " ".join(f"{type(problem).__name__}: {problem}".split())
    _say(
        f"error: {one_line(what)}\n"
        "This is a defect of Muser. Run it again with MUSER_DEBUG=1 and report what it prints."
    )
    return DEFECT
