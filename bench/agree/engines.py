"""Two engines behind one verb: `logits(ids, first)`, teacher-forced, a few rows at a time."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 64


class Scorer(Protocol):
    """An engine with a model open."""

    vocabulary: int

    def logits(self, ids: Sequence[int], first: int) -> Iterator[NDArray[np.float32]]:
        """Logits after `ids[first:]`, each given all before it: f32 blocks `[≤ 64, vocabulary]`."""
        ...


class LlamaCpp:
    """llama.cpp in a process of its own (`bench/peers/llama_worker.py`), KV in f16.

    `flash` is `off`, `on` or `auto`. Off is the reference: its bits depend on no thread count.
    """

    def __init__(
        self, python: Path, worker: Path, *, threads: int, flash: str = "off", log: Path
    ) -> None:
        self.threads, self.flash = threads, flash
        self.vocabulary = 0
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [str(python), str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._build = self._ask(do="build")

    def described(self) -> dict[str, Any]:
        """Package, instruction sets, hashes of the libraries, settings."""
        settings = {"threads": self.threads, "flash_attention": self.flash, "kv": "f16"}
        return {**self._build, "settings": settings}

    def open(self, model: Path, context: int) -> Self:
        settings = {"context": context, "threads": self.threads, "flash": self.flash}
        self.vocabulary = self._ask(do="open", model=str(model), **settings)["vocabulary"]
        return self

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._ask(do="tokenize", text=text)["ids"]
        return ids

    def logits(self, ids: Sequence[int], first: int) -> Iterator[NDArray[np.float32]]:
        left = self._ask(do="logits", ids=list(map(int, ids)), first=first)["rows"]
        while left:
            rows = min(BLOCK_ROWS, left)
            left -= rows
            yield self._floats(rows * self.vocabulary).reshape(rows, self.vocabulary)

    def nodes(
        self, ids: Sequence[int], names: Sequence[str]
    ) -> list[tuple[str, NDArray[np.float32]]]:
        """The f32 nodes of llama.cpp's graph with these names, in the order of computation."""
        found = self._ask(do="nodes", ids=list(map(int, ids)), names=list(names))["nodes"]
        return [
            (name, self._floats(int(np.prod(shape))).reshape(shape).squeeze())
            for name, shape in found
        ]

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._end()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _floats(self, count: int) -> NDArray[np.float32]:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count * 4)
        if len(data) != count * 4:
            self._end()
        return np.frombuffer(data, np.float32)

    def _end(self) -> None:
        status = self._process.wait()
        lines = Path(self._log.name).read_text(errors="replace").splitlines()[-5:]
        raise SystemExit(f"llama.cpp's process ended with status {status}:\n" + "\n".join(lines))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


class Muser:
    """Muser in this process."""

    def __init__(self, *, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self.vocabulary = 0
        self._engine: Any = None
        self._used: dict[str, Any] = {}

    def described(self) -> dict[str, Any]:
        """Package, device, and what the opened models really ran on."""
        import muser

        about = {"package": f"muser=={muser.__version__}", "device": self.device}
        return {**about, "threads": self.threads, **self._used}

    def open(self, model: Path, context: int) -> Self:
        import muser

        self.close()
        self._engine = muser.load(model, device=self.device, threads=self.threads, context=context)
        self.vocabulary = self._engine.graph.vocabulary
        self._used = {
            "labels": {**self._used.get("labels", {}), **self._engine.labels},
            "libraries": dict(self._engine.libraries),
        }
        return self

    def logits(self, ids: Sequence[int], first: int) -> Iterator[NDArray[np.float32]]:
        table = self._engine.logits([int(token) for token in ids])
        for start in range(first, len(ids), BLOCK_ROWS):
            yield table[start : start + BLOCK_ROWS]

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
