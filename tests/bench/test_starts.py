"""Starts and loads with fake processes and sides."""

import json
import sys

import pytest

from muser.bench import loads, walls
from muser.bench.loads import run_load
from muser.bench.record import require
from muser.bench.walls import run_start, timed_process
from muser.cli.bench_starts import load_table, start_table
from muser.errors import DeviceError, WrongTokens
from tests.bench.fakes import CountingSide, FakeMachine

PROMPT_IDS = list(walls.PROMPT.encode())


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "home"))
    for module in (walls, loads):
        monkeypatch.setattr(module, "tokenizer_of", lambda model: lambda text: list(text.encode()))
        monkeypatch.setattr(module, "reference_side", lambda _: CountingSide("reference"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


class Processes:
    """`muser run` as a fake: the n-th takes n seconds; `wrong` names the one that errs."""

    def __init__(self, wrong=None):
        self.homes, self.wrong = [], wrong

    def __call__(self, command, environment):
        self.homes.append(environment["MUSER_HOME"])
        token = sum(PROMPT_IDS) + (len(self.homes) == self.wrong)
        said = {"prompt_ids": PROMPT_IDS, "ids": [token], "libraries": {"cpu-x": "00"}}
        return len(self.homes) * 10**9, json.dumps(said)


def test_cold_starts_have_a_home_each_and_warm_ones_share_theirs(model):
    processes = Processes()
    record = run_start(model, 3, "c", run=processes, look=FakeMachine().look())
    [run] = record["runs"]
    assert run["cold"]["ns"] == [10**9, 2 * 10**9, 3 * 10**9]
    assert run["warm"]["ns"] == [5 * 10**9, 6 * 10**9, 7 * 10**9]  # the fourth filled the shelf
    assert len(set(processes.homes[:3])) == 3
    assert len(set(processes.homes[3:])) == 1
    assert run["sides"]["ours"]["libraries"] == {"cpu-x": "00"}
    assert "6.000" in "\n".join(start_table(record))


@pytest.mark.parametrize("wrong", [1, 4, 7])
def test_a_wrong_answer_tells_no_time(model, wrong):
    record = run_start(model, 3, "c", run=Processes(wrong), look=FakeMachine().look())
    assert record["runs"] == []
    assert record["failed"]["sides"]["ours"]["libraries"] == {"cpu-x": "00"}
    with pytest.raises(WrongTokens, match="answered"):
        require(record)


def test_a_process_that_fails_is_named_with_its_last_words():
    script = "import sys; print('no', file=sys.stderr); sys.exit(4)"
    with pytest.raises(DeviceError, match="`muser run` failed: no"):
        timed_process([sys.executable, "-c", script], {})
    took, said = timed_process(
        [sys.executable, "-c", "import os; print(os.environ['X'])"], {"X": "7"}
    )
    assert took > 0
    assert said == "7\n"


def test_every_load_has_a_process_of_its_own_and_takes_turns(model):
    opened = []

    def opening(name):
        def opens():
            opened.append(CountingSide(name))
            return opened[-1]

        return opens

    record = run_load(
        model,
        (1, 2),
        64,
        2,
        "c",
        open_ours=opening("o"),
        open_theirs=opening("t"),
        look=FakeMachine().look(),
    )
    assert [side.name for side in opened] == ["o", "t", "o", "t", "t", "o"] * 2
    assert all(side.closed for side in opened)
    assert [side.loads[0][1:] for side in opened] == [(1, 64, 1)] * 6 + [(2, 64, 1)] * 6
    run = record["runs"][1]
    assert run["loads"]["ours"]["ns"] == [5, 5]
    assert run["loads"]["theirs"]["memory"]["after"]["rss"] == 10
    assert run["ratios"] == {"of_medians": 1.0, "least": 1.0}
    assert "ours ÷ theirs 1.000" in "\n".join(load_table(record))


def test_a_load_that_computes_something_else_tells_no_time(model):
    look = FakeMachine().look()
    record = run_load(model, (1,), 64, 2, "c", open_ours=lambda: CountingSide(wrong=1), look=look)
    assert record["runs"] == []
    assert record["failed"]["sides"]["ours"]["libraries"] == {"ours": "00"}
    with pytest.raises(WrongTokens):
        require(record)


def test_a_timed_process_may_write_bytecode(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("KEPT", "yes")
    told = "import os; print(os.environ.get('PYTHONDONTWRITEBYTECODE'), os.environ['KEPT'])"
    assert timed_process((sys.executable, "-c", told), {})[1].split() == ["None", "yes"]
