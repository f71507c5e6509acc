"""The worker's end of the pipe: JSON lines in, JSON lines out.

Standard library only, so that a rival's worker may take this file by path.
"""

import json
import os
import sys
from typing import Any

KIB = 1024


def answer_all(worker: Any) -> None:
    """Answer requests with the worker's `do_…` methods, which return dicts, until input ends.

    What libraries print on standard output goes to standard error instead.
    """
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(_answer(worker, json.loads(line))).encode() + b"\n")
        out.flush()


def _answer(worker: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = getattr(worker, f"do_{request.pop('do')}")(**request)
    except Exception as error:
        sentence = getattr(error, "sentence", f"{type(error).__name__}: {error}")
        return {"error": sentence, "remedy": getattr(error, "remedy", "See the worker's messages.")}
    return answer


def memory() -> dict[str, int]:
    """This process, in bytes: `rss`, `anonymous`, `file`, `peak`; zeros where there is no /proc.

    /proc/self/smaps_rollup splits what is resident; the highest mark is /proc/self/status's.
    """
    try:
        rollup, status = _fields("/proc/self/smaps_rollup"), _fields("/proc/self/status")
    except OSError:
        return dict.fromkeys(("rss", "anonymous", "file", "peak"), 0)
    rss, anonymous = rollup["Rss"], rollup["Anonymous"]
    return {"rss": rss, "anonymous": anonymous, "file": rss - anonymous, "peak": status["VmHWM"]}


def _fields(path: str) -> dict[str, int]:
    """The lines `Name:  123 kB` of a file, as bytes."""
    found = {}
    with open(path) as file:
        for line in file:
            name, _, rest = line.partition(":")
            words = rest.split()
            if len(words) == 2 and words[1] == "kB":
                found[name] = int(words[0]) * KIB
    return found
