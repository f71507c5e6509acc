"""How long a start takes, part by part, each measurement in a process of its own.

cold: an empty shelf of its own; the page cache is as it is. warm: the same shelf once it is filled.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter

from muser.errors import DeviceError

PROMPT = "The capital of France is"
WARM_RUNS = 3

# What `muser run` imports, before anything of this package's measuring is.
_SNIPPET = """
import sys
from time import perf_counter
begun = perf_counter()
import muser.cli, muser.engine, muser.devices.cpu
done = perf_counter()
from muser.bench.starting import report
report(sys.argv[1], float(sys.argv[2]), begun, done)
"""


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds: until Python runs; to import; until the libraries are compiled or found, opened and
    proved; to load the model with them; from the prompt to the first token; all of the process.
    """

    python_s: float
    import_s: float
    compile_s: float
    load_s: float
    first_token_s: float
    total_s: float


def report(model: str, started: float, begun: float, imported: float) -> None:
    """The worker: measures its own start and prints it."""
    from muser.devices import CpuDevice
    from muser.engine import load

    before = perf_counter()
    CpuDevice(threads=1)
    compiled = perf_counter()
    with load(model, expects_chat=True) as engine:
        loaded = perf_counter()
        engine.generate(PROMPT, raw=engine.template is None, max_tokens=1)
        answered = perf_counter()
    start = Start(
        python_s=begun - started,
        import_s=imported - begun,
        compile_s=compiled - before,
        load_s=loaded - compiled,
        first_token_s=answered - loaded,
        total_s=answered - started,
    )
    print(json.dumps(asdict(start)))


def timed(model: Path, home: Path) -> Start:
    """One start in a fresh process, with `home` for its libraries. Raises `DeviceError`."""
    # The clock of `perf_counter` is the system's, so that it can be read here and there.
    command = [sys.executable, "-c", _SNIPPET, str(model), repr(perf_counter())]
    environment = {**os.environ, "MUSER_HOME": str(home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed Muser has its bytecode
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise DeviceError(
            f"A start with {model} failed: {last}", "Run the same model with muser run to see why."
        )
    return Start(**json.loads(done.stdout.splitlines()[-1]))


def cold_and_warm(model: Path) -> tuple[Start, tuple[Start, ...]]:
    """One cold start and several warm ones, with a home that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="muser-") as folder:
        home = Path(folder)
        cold = timed(model.absolute(), home)
        return cold, tuple(timed(model.absolute(), home) for _ in range(WARM_RUNS))


def middle(starts: tuple[Start, ...]) -> Start:
    """The median of each part."""
    parts = {
        field.name: sorted(getattr(start, field.name) for start in starts)[len(starts) // 2]
        for field in fields(Start)
    }
    return Start(**parts)
