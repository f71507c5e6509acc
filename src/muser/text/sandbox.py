"""A process of its own for templates: they come from model files and may be hostile.

A template engine inside this process cannot be stopped: minijinja's fuel does not count list
growth, comparisons or printing, and deep values overflow its stack (measured on 3.1.0). jinja2
renders as model makers expect by definition, and a process can be killed.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from muser.errors import LimitError, ModelError, UsageError

WALL_SECONDS = 20.0  # beside the worker's own limit of processor time
MAX_ANSWER = 1 << 29  # bytes; the worker's limit of 2^25 characters, escaped, is below it
WORKER = Path(__file__).with_name("template_worker.py")


class Sandbox:
    """Renders templates in a worker process, started on first use and again after it was killed.

    `close` ends the process; so does the end of this one. Several threads may render; they wait.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        """`seconds` of processor time for one rendering."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process if it is not running: 60 ms that can pass beside other work."""
        with self._lock:
            self._running()

    def render(self, source: str, variables: Mapping[str, Any], now: datetime) -> str:
        """The text of `source`.

        Raises UsageError for variables that are not JSON values or that the template refuses,
        ModelError for a template that fails or does what is forbidden, LimitError for one that
        takes too long, too much memory or writes too much.
        """
        request = _encode({"source": source, "variables": dict(variables), "now": now.isoformat()})
        with self._lock:
            answer = self._ask(request)
        if "text" in answer:
            return str(answer["text"])
        raise _error(answer.get("kind"), str(answer.get("message")).rstrip("."))

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._kill()

    def _ask(self, request: bytes) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        clock = threading.Timer(WALL_SECONDS, process.kill)
        clock.daemon = True
        clock.start()
        try:
            _send(process.stdin, request)
            answer: dict[str, Any] = json.loads(_receive(process.stdout))
        except (OSError, ValueError) as error:
            self._kill()
            raise _error("limit", "its process was ended") from error
        except BaseException:
            self._kill()  # an interrupted exchange cannot be taken up again
            raise
        finally:
            clock.cancel()
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._kill()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        _send(self._process.stdin, _encode(self._terms()))
        return self._process

    def _terms(self) -> dict[str, Any]:
        return {"path": [path for path in sys.path if path], "seconds": self._seconds}

    def _kill(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                _close(pipe)
        process.wait()

    def __del__(self) -> None:
        self._kill()


def _encode(request: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(request, default=_plain).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"A value given to the chat template is not plain data: {error}.",
            "Give texts, numbers, bools, None, lists and mappings with text keys.",
        ) from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple | range):
        return list(value)
    raise TypeError(f"{type(value).__name__} {value!r:.80}")


def _send(pipe: IO[bytes], payload: bytes) -> None:
    pipe.write(len(payload).to_bytes(4, "little") + payload)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    size = int.from_bytes(pipe.read(4), "little")
    if not 0 < size <= MAX_ANSWER:
        raise ValueError("no answer")
    return pipe.read(size)


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except OSError:
        return  # what was not yet sent to a process that is gone


def _error(kind: object, message: str) -> UsageError | ModelError | LimitError:
    if kind == "refused":
        return UsageError(
            f"The chat template of this model refuses these messages: {message}.",
            "Change the messages, or give the prompt without a template.",
        )
    if kind == "limit":
        return LimitError(
            f"The chat template of this model was stopped: {message}.",
            "Shorten the messages, or give the prompt without a template.",
        )
    how = "does something forbidden" if kind == "forbidden" else "failed"
    return ModelError(
        f"The chat template of this model {how}: {message}.",
        "Check the messages, or give the prompt without a template.",
    )
