import sys
from pathlib import Path

import pytest

from muser.bench import WorkerSide
from muser.errors import DeviceError


@pytest.fixture
def side():
    command = [sys.executable, str(Path(__file__).with_name("fake_worker.py"))]
    with WorkerSide("counting", command) as side:
        yield side


def test_a_side_answers_whatever_its_libraries_print(side):
    assert side.identity() == {"engine": "counting", "version": "1"}
    loading = side.load(Path("model"), threads=1, context=8)
    assert loading.ns == 7
    sample = side.decode([[1, 2], []], [[3, 4], [5, 6]], margins=True)
    assert sample.ids == (6, 10, 5, 11)
    assert sample.ns == 4
    assert sample.margins == (0.5,) * 4
    assert side.decode([[]], [[1]]).margins is None


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_memory_is_split_and_its_peak_is_no_less(side):
    memory = side.memory()
    assert memory.rss == memory.anonymous + memory.file
    assert 0 < memory.anonymous < memory.rss
    # The kernel counts the two marks a little apart.
    assert memory.peak > memory.rss // 2


def test_a_refusal_names_the_side_and_the_worker_lives_on(side):
    with pytest.raises(DeviceError, match="counting: FileNotFoundError: missing"):
        side.load(Path("missing"), threads=1, context=8)
    assert side.identity()["version"] == "1"


def test_a_worker_that_dies_leaves_its_last_words(side):
    with pytest.raises(DeviceError, match=r"counting ended with status 3: .*the last words"):
        side.prefill([1])
    with pytest.raises(DeviceError, match="status 3"):
        side.memory()
