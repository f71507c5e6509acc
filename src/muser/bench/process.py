"""A side by its command line: this end of the pipe."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from muser.bench.side import Loading, Memory, Sample
from muser.errors import DeviceError

PATIENCE = 10.0  # seconds that a worker gets to end before it is killed
TAIL_LINES = 5


class WorkerSide:
    """A `Side` whose worker is `command`; `environment` is added to this process's own.

    Raises `DeviceError` for whatever the worker refuses and for a worker that dies, with the last
    lines it wrote to standard error. `after_crash`: what else may help one that a signal ended.
    """

    after_crash = ""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
        )

    def identity(self) -> Mapping[str, Any]:
        return self.ask(do="identity")

    def load(self, model: Path, *, threads: int, context: int, slots: int = 1) -> Loading:
        said = self.ask(do="load", model=str(model), threads=threads, context=context, slots=slots)
        return Loading(said["ns"], Memory(**said["before"]), Memory(**said["after"]))

    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        fed: Sequence[Sequence[int]],
        *,
        margins: bool = False,
    ) -> Sample:
        asked = {"prompts": list(map(list, prompts)), "fed": list(map(list, fed))}
        return _sample(self.ask(do="decode", **asked, margins=margins))

    def prefill(self, ids: Sequence[int], *, margins: bool = False) -> Sample:
        return _sample(self.ask(do="prefill", ids=list(ids), margins=margins))

    def memory(self) -> Memory:
        return Memory(**self.ask(do="memory"))

    def close(self) -> None:
        process = self._process
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what a dead worker never read is still to be written
                pipe.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, `do` and what it needs; its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        line = self._process.stdout.readline()
        if not line:
            raise self._death()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DeviceError(f"{self.name}: {answer['error']}", answer["remedy"])
        return answer

    def _death(self) -> DeviceError:
        status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return DeviceError(
            f"The process of {self.name} ended with status {status}: {' | '.join(lines)}",
            (self.after_crash if status < 0 else "")
            + "Start it by hand to see all it says, or leave this side out.",
        )


def _sample(said: Mapping[str, Any]) -> Sample:
    digests, margins = said.get("logits_sha256"), said.get("margins")
    return Sample(
        ids=tuple(said["ids"]),
        ns=said["ns"],
        logits_sha256=None if digests is None else tuple(digests),
        margins=None if margins is None else tuple(margins),
    )
