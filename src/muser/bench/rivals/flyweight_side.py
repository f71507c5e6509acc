"""flyweight-llm as a side, on its CPU backend. It opens the architectures of its own list only."""

import sys
from pathlib import Path

from muser.bench.process import WorkerSide
from muser.bench.rivals.llama_side import has_package
from muser.errors import UsageError

WORKER = Path(__file__).with_name("flyweight_worker.py")


class FlyweightSide(WorkerSide):
    """The `flyweight` package of the Python interpreter at `python` (None: of this one).

    One slot; no margins and no digests, since it gives ids and not logits. Raises `UsageError`
    where that interpreter cannot import it.
    """

    def __init__(self, python: Path | None = None, *, name: str = "flyweight-llm") -> None:
        interpreter = str(python or sys.executable)
        if not has_package(interpreter, "flyweight"):
            raise UsageError(f"{interpreter} has no flyweight.", "Install flyweight-llm there.")
        super().__init__(name, (interpreter, str(WORKER)))
