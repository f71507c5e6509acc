import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muser.bench import quiet
from muser.bench.lock import alone
from muser.bench.look import recorded
from muser.errors import BusyError
from tests.bench.fakes import FakeMachine

STAT = "{pid} (a ) b) S {parent} 0 0 0 0 0 0 0 0 0 {user} {system} {ended} 0 20 0\n"


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "stat").write_text("cpu  400 0 100 900 50 30 20 70 0 0\ncpu0 1 1 1 1\n")
    (tmp_path / "loadavg").write_text("1.25 0.5 0.1 2/90 77\n")
    for pid, parent, user in [(10, 1, 100), (11, 10, 40), (12, 11, 5), (13, 1, 300)]:
        (tmp_path / str(pid)).mkdir()
        line = STAT.format(pid=pid, parent=parent, user=user, system=2, ended=1)
        (tmp_path / str(pid) / "stat").write_text(line)
    (tmp_path / "14").mkdir()  # has ended between listing and reading
    return tmp_path


def test_processor_time_is_split_into_own_and_others(proc, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    reading = quiet.read(proc, own=10)
    assert reading.busy == 5.5
    assert reading.stolen == 0.7
    assert reading.own == pytest.approx((145 + 3 * 2 + 3) / 100)
    assert reading.load == 1.25


@pytest.mark.parametrize(
    ("others", "stolen", "is_quiet"),
    [(0.0, 0.0, True), (0.09, 0.04, True), (0.2, 0.0, False), (0.0, 0.1, False)],
)
def test_a_machine_is_quiet_when_nobody_else_works(others, stolen, is_quiet):
    machine = FakeMachine(others, stolen)
    noise = quiet.watch(2.0, machine.read, machine.sleep)
    assert machine.slept == [2.0]
    assert noise.seconds == 2.5
    assert noise.others == pytest.approx(others, abs=1e-4)
    assert noise.is_quiet is is_quiet


def test_a_system_without_proc_cannot_claim_quiet(tmp_path):
    first = quiet.read(tmp_path / "none")
    time.sleep(0.001)
    assert not quiet.Noise.between(first, quiet.read(tmp_path / "none")).is_quiet


class Phases(FakeMachine):
    """Others work in one phase only: while it is looked before, during the body, or after."""

    def __init__(self, loud):
        super().__init__()
        self.loud = loud

    def sleep(self, seconds):
        self.others = 1.0 if ("before", "after")[len(self.slept)] == self.loud else 0.0
        super().sleep(seconds)
        self.others = 0.0


@pytest.mark.parametrize("loud", ["before", "during", "after", None])
def test_one_loud_moment_is_enough(tmp_path, loud):
    model = tmp_path / "model"
    model.write_bytes(b"abc")
    machine = Phases(loud)

    def body(sides):
        machine.others = 1.0 if loud == "during" else 0.0
        machine.advance(1.0)
        machine.others = 0.0
        return {"runs": []}

    record = recorded("decode", model, body, machine.look())
    assert record["quiet"] is (loud is None)
    loud_phases = [name for name, noise in record["noise"].items() if noise["others"] > 0.1]
    assert loud_phases == ([] if loud is None else [loud])
    assert record["model"]["bytes"] == 3


HOLD = """
import sys
from pathlib import Path
from muser.bench.lock import alone
with alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_measurements_exclude_each_other(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(BusyError, match="Another measurement"), alone(tmp_path):
        pass
    other.kill()  # a lock dies with its holder
    other.communicate()
    with alone(tmp_path), pytest.raises(BusyError), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass
    assert [path.name for path in Path(tmp_path).iterdir()] == ["bench.lock"]
