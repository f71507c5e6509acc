"""The `muser` command: what is said and returned when something goes wrong.

Exit statuses: 0 done, 1 a defect of Muser, 2 to 8 the class of the error (`muser.errors`),
130 interrupted, 141 the reader of the output went away, 143 terminated.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from cyclopts import App
from cyclopts.exceptions import CycloptsError

from muser.cli import model_list, model_show, model_synth, run, tokenize
from muser.errors import Cancelled, MuserError, UsageError

DEFECT = 1
READER_GONE = 141
TERMINATED = 143


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("muser")
    except PackageNotFoundError:
        return "unknown (not installed)"


def build() -> App:
    """The command tree; commands import what they need when they run."""
    app = App(
        name="muser",
        help="Runs GGUF language models with the same bits everywhere.",
        help_format="plaintext",
        version=_version,
        version_flags=["--version"],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    app.command(run.run)
    app.command(tokenize.tokenize)
    model = App(name="model", help="Lists, shows and makes model files.")
    model.command(model_list.list_models, name="list")
    model.command(model_show.show)
    model.command(model_synth.synth)
    app.command(model)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(status_of(sys.argv[1:] if arguments is None else list(arguments)))


def status_of(arguments: list[str]) -> int:
    """Run one command; every way it can end becomes a message and an exit status."""
    try:
        build()(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
        return 0
    except CycloptsError as problem:
        return _complain(UsageError(_one_line(problem), "See `muser --help`."))
    except Cancelled as problem:
        return problem.exit_status
    except MuserError as problem:
        return _complain(problem)
    except KeyboardInterrupt:
        return Cancelled.exit_status
    except BrokenPipeError:
        # Python flushes stdout once more when it ends: give it somewhere harmless to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except Exception as problem:
        return _defect(problem)


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)


def _one_line(problem: CycloptsError) -> str:
    return " ".join(str(problem).split())


def _complain(problem: MuserError) -> int:
    if os.environ.get("MUSER_DEBUG") == "1":
        raise problem
    print(f"error: {problem.sentence}\n{problem.remedy}", file=sys.stderr)
    return problem.exit_status


def _defect(problem: Exception) -> int:
    if os.environ.get("MUSER_DEBUG") == "1":
        raise problem
    what = " ".join(f"{type(problem).__name__}: {problem}".split())
    print(
        f"error: {what}\n"
        "This is a defect of Muser. Run it again with MUSER_DEBUG=1 and report what it prints.",
        file=sys.stderr,
    )
    return DEFECT
