"""What the emulated machine needs, without making one."""

import shutil
import subprocess
import sys

import pytest

from . import machine


@pytest.mark.parametrize("missing", [*machine.EMULATORS, machine.COMPILER, "apt-get", "dpkg-deb"])
def test_a_missing_tool_is_named(monkeypatch, missing):
    kind = machine.EMULATORS if missing in machine.EMULATORS else (missing,)
    monkeypatch.setattr(shutil, "which", lambda name: None if name in kind else f"/bin/{name}")
    with pytest.raises(machine.Unavailable, match=f"{kind[0]} is not here"):
        machine.prepare()


def test_a_run_without_a_machine_is_not_green(tmp_path):
    """They were asked for by name: nobody should believe that they ran."""
    command = (sys.executable, "-m", "pytest", "-m", "arm", "-p", "no:cacheprovider", "tests/arm")
    environment = {"PATH": str(tmp_path), "MUSER_HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=machine.REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout
    assert "no ARM machine can be emulated here: qemu-aarch64 is not here" in done.stdout
    assert "passed" not in done.stdout


def test_a_run_without_an_end_is_killed_and_keeps_what_it_said(tmp_path):
    """On this computer's own interpreter, which takes the place of the emulated one."""
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/usr/bin/python").symlink_to(sys.executable)
    code = "import time; print('begun', flush=True); time.sleep(60)"
    done = machine.Machine(tmp_path).run("any", "-c", code, limit=2)
    assert done.returncode == machine.TIMED_OUT
    assert done.stdout == "begun\n\nkilled: no end after 2 s\n"


def test_a_command_that_fails_says_why():
    with pytest.raises(machine.Unavailable, match="sh failed: no such suite"):
        machine._do("/bin/sh", "-c", "echo first; echo no such suite >&2; exit 3")


def test_only_the_closing_lines_are_repeated():
    from .conftest import totals

    said = "....\ncpu-neon: 3 comparisons\nno cpu\n4 passed in 1 s\nSKIPPED [1] x\n"
    assert totals(said) == ["cpu-neon: 3 comparisons", "4 passed in 1 s"]
