"""The emulated interpreter by hand: `python -m tests.arm [--cpu NAME] ARGUMENTS…`.

`python -m tests.arm -m pytest tests/kernels/test_project.py -k neon` runs tests in it.
"""

import os
import sys

from .machine import REPOSITORY, Unavailable, prepare
from .processors import BEST


def main(arguments: list[str]) -> None:
    cpu = BEST
    if arguments[:1] == ["--cpu"]:
        cpu, arguments = arguments[1], arguments[2:]
    try:
        machine = prepare()
    except Unavailable as reason:
        sys.exit(f"No ARM machine can be emulated here: {reason}.")
    os.chdir(REPOSITORY)
    os.execve(machine.python, (str(machine.python), *arguments), machine.environment(cpu))


if __name__ == "__main__":
    main(sys.argv[1:])
