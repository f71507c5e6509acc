"""A lock between processes: one holder, and a waiter that learns who it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from muser import locking
from muser.locking import held

HOLD = """
import sys
from pathlib import Path
from muser.locking import held
with held(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that holds the lock until it is let go."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_free_lock_is_taken_without_a_word(tmp_path):
    for _ in range(2):
        with held(tmp_path / "lock", pytest.fail):
            pass


def test_a_waiter_hears_who_holds_it_and_gets_it_next(tmp_path, holder):
    said = []

    def hear(who):
        said.append(who)
        holder.stdin.close()

    with held(tmp_path / "lock", hear):
        pass
    assert said == [f"process {holder.pid}"]


def test_a_lock_ends_with_its_process(tmp_path, holder):
    with held(tmp_path / "lock", lambda who: holder.kill()):
        pass


def test_patience(tmp_path, holder, monkeypatch):
    """Nothing is said before it has passed; then it is said once."""
    clock = iter([0.0, 0.5, 1.0, 1.5])
    monkeypatch.setattr(locking.time, "monotonic", lambda: next(clock, 9.0))
    waits, said = [], []

    def sleep(seconds):
        waits.append(len(said))
        if len(waits) == 3:
            holder.kill()
            holder.wait()

    monkeypatch.setattr(locking.time, "sleep", sleep)
    with held(tmp_path / "lock", said.append, patience=1.0):
        pass
    assert waits[:3] == [0, 1, 1]
    assert said == [f"process {holder.pid}"]


@pytest.mark.parametrize("signature", [b"", b"nobody", b"\xff\xfe", b"-7"])
def test_a_signature_of_nobody(tmp_path, holder, signature):
    (tmp_path / "lock").write_bytes(signature)
    said = []

    def hear(who):
        said.append(who)
        holder.kill()

    with held(tmp_path / "lock", hear):
        pass
    assert said == ["another process"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError), held(tmp_path / "away" / "lock", print):
        pass
