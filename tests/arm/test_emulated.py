"""ARM kernels under qemu-user: the same tests as anywhere, run by an emulated interpreter.

What an emulator cannot show: speed, and an ordering of memory weaker than this machine's own.
"""

import re

import pytest

from .conftest import totals
from .processors import SETS

pytestmark = pytest.mark.arm


@pytest.mark.parametrize("cpu", SETS)
def test_sets_are_those_of_the_processors_bits_and_conform(runs, said, cpu):
    done = runs[f"checks on {cpu}"].result()
    assert done.returncode == 0, done.stdout
    found, *checks = [line.split() for line in done.stdout.splitlines()]
    assert tuple(found[1:]) == SETS[cpu]
    assert [line[0] for line in checks] == list(SETS[cpu])
    assert all(len(line) == 2 and int(line[1]) > 20 for line in checks), checks
    said.append(f"{cpu}: {', '.join(' '.join(line) for line in checks)} conformance checks")


@pytest.mark.parametrize("run", ["kernels", "devices"])
def test_passes_as_everywhere(runs, said, run):
    """`kernels`: equality with the oracle; `devices`: one model, one answer."""
    done = runs[run].result()
    assert done.returncode == 0, done.stdout
    lines = totals(done.stdout)
    assert any(re.match(r"[1-9]\d+ passed", line) for line in lines), done.stdout
    said += [f"{run}: {line}" for line in lines]
