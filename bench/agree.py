"""Agreement of Muser with llama.cpp, teacher-forced: both score the same tokens.

    python bench/agree.py [--case greedy|loss|tiny-… ...] [--json FILE]

* `greedy`: 24 recorded prompts × 64 tokens of llama.cpp's own greedy choice. No other first choice
  where llama.cpp's margin exceeds 0.75 (at least 500 such positions), at most 2 % beyond 0.1.
* `loss`: mean loss over 64 chunks of 512 tokens of the Brown corpus within 0.005 nat, paired.
* `tiny-muse-glimmer`, `tiny-gemma3`: a tiny F32 model of random weights; relative logit error at
  most 1e-2, and with a scaled head the two bounds of `greedy`.

The reference is llama-cpp-python (`bench/peers/llama_cpp_python.py install`). Exit status 1 if a
bound is broken. `--candidate llama.cpp` puts llama.cpp with flash attention in Muser's place: how
far llama.cpp is from itself.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agree import cases
from agree.engines import LlamaCpp, Muser
from agree.report import host, lines
from peers import llama_cpp_python

from muser import places
from muser.weights import obtain

TINY = "tiny-"
CASES = ("greedy", "loss", *(TINY + architecture for architecture in cases.TINY))


def main() -> None:
    chosen = _arguments()
    try:
        record = run(chosen)
    except llama_cpp_python.PeerError as error:
        sys.exit(str(error))
    print("\n".join(lines(record)))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if record["passed"] else 1)


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    """The whole record: who was compared, where, and how each case fared."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muser-agree-")))
        reference = stack.enter_context(_llama(chosen.flash, chosen.threads, folder))
        if chosen.candidate == "muser":
            candidate = stack.enter_context(Muser(device=chosen.device, threads=chosen.threads))
        else:
            candidate = stack.enter_context(_llama("on", chosen.threads, folder))
        pair = cases.Pair(reference, candidate, Path(obtain(chosen.model)), folder)
        found = {name: _case(name, pair, chosen) for name in chosen.case or CASES}
        return {
            "command": ["python", "bench/agree.py", *sys.argv[1:]],
            "host": host(),
            "model": {"name": pair.model.name, "sha256": cases.sha256(pair.model)},
            "reference": reference.described(),
            "candidate": candidate.described(),
            "cases": found,
            "passed": all(case["passed"] for case in found.values()),
        }


def _case(name: str, pair: cases.Pair, chosen: argparse.Namespace) -> dict[str, Any]:
    if name == "greedy":
        return cases.greedy(pair, chosen.prompts)
    if name.startswith(TINY):
        return cases.tiny(pair, name.removeprefix(TINY))
    kept = places.home() / "peers"
    return cases.loss(pair, chosen.chunks, kept, say=_say)


def _llama(flash: str, threads: int, folder: Path) -> LlamaCpp:
    log = folder / f"llama.cpp-flash-{flash}.log"
    python, worker = llama_cpp_python.python(), llama_cpp_python.WORKER
    return LlamaCpp(python, worker, threads=threads, flash=flash, log=log)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--case", action="append", choices=CASES, help="only this one; may be repeated")
    add("--model", default="smollm2-135m", help="name or path of the model of the first two")
    add("--candidate", choices=("muser", "llama.cpp"), default="muser")
    add("--device", default="cpu", help="Muser's device")
    add("--threads", type=int, default=1, help="of both engines")
    add("--flash", choices=("off", "on", "auto"), default="off", help="of the reference")
    add("--prompts", type=int, default=24, help="how many of the recorded prompts")
    add("--chunks", type=int, default=64, help="how many chunks of 512 tokens")
    add("--json", type=Path, metavar="FILE", help="write the record here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
