"""A whole run on fake sides, and once on the real one."""

import pytest

from muser.bench import session
from muser.bench.cells import Cell
from muser.bench.fixture import fixture_ids, sentences
from muser.bench.record import require
from muser.bench.session import Plan, reference_isa, run_plan
from muser.errors import BusyError, DeviceError, UsageError, WrongTokens
from muser.kernels import Shelf, choose_library, supported_isas
from muser.models.synth import synthesise
from muser.places import libraries
from tests.bench.fakes import CountingSide, FakeMachine

CELLS = (Cell("decode", 2, 3), Cell("prefill", 0, 4), Cell("batch", 0, 2, slots=2))


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(session, "tokenizer_of", lambda model: lambda text: list(text.encode()))
    monkeypatch.setattr(session, "reference_side", lambda _: CountingSide("reference"))
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    return Plan("decode", model, CELLS, (1, 2), "plain", 3)


def test_a_run_measures_every_cell_with_every_count_of_threads(plan):
    ours, theirs = CountingSide("ours"), CountingSide("theirs", ns=(3000,))
    said = []
    record = run_plan(
        plan,
        open_ours=lambda: ours,
        open_theirs=lambda: theirs,
        say=said.append,
        look=FakeMachine().look(),
    )
    assert [(run["threads"], run["slots"]) for run in record["runs"]] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]
    assert ours.loads == theirs.loads
    assert ours.loads[0] == (plan.model, 1, 6, 1)
    cell = record["runs"][0]["cells"][0]
    assert cell["ratios"]["of_medians"] == 3.0
    assert record["runs"][0]["sides"]["theirs"]["engine"] == "theirs"
    assert record["runs"][0]["loading"]["ours"]["after"]["rss"] == 10
    assert record["quiet"] is True
    assert record["reference"]["libraries"] == {"reference": "00"}
    assert record["at"] == "2026-01-31T12:00:00Z"
    assert (ours.closed, theirs.closed) == (True, True)
    assert said[0] == "Reference runs (plain)."


def test_wrong_tokens_end_the_run_and_both_sides_and_are_kept(plan):
    """A figure of the cells before, too, would be one of a run that computed something else."""
    ours, theirs = CountingSide("ours", wrong=5), CountingSide("theirs")
    record = run_plan(
        plan,
        open_ours=lambda: ours,
        open_theirs=lambda: theirs,
        look=FakeMachine().look(),
    )
    assert (ours.closed, theirs.closed) == (True, True)
    assert record["runs"] == []
    failed = record["failed"]
    assert failed["code"] == "wrong_tokens"
    assert failed["sentence"].startswith("prefill 4: choice 0 is ")
    assert failed["sides"]["ours"]["libraries"] == {"ours": "00"}
    assert failed["sides"]["theirs"]["engine"] == "theirs"
    assert record["reference"]["libraries"] == {"reference": "00"}
    with pytest.raises(WrongTokens, match="prefill 4: choice 0 is "):
        require(record)


def test_a_side_that_refuses_is_a_failed_run_and_a_mistake_is_none(plan):
    def refuse(kind):
        raise kind("No.", "Yes.")

    record = run_plan(plan, open_ours=lambda: refuse(DeviceError), look=FakeMachine().look())
    assert (record["failed"]["sentence"], record["failed"]["sides"]) == ("No.", {})
    with pytest.raises(DeviceError):
        require(record)
    with pytest.raises(UsageError):
        run_plan(plan, open_ours=lambda: refuse(UsageError), look=FakeMachine().look())


def test_a_run_holds_the_lock(plan):
    class Inside(CountingSide):
        def load(self, *arguments, **named):
            with pytest.raises(BusyError):
                run_plan(plan)
            return super().load(*arguments, **named)

    run_plan(plan, open_ours=Inside, look=FakeMachine().look())


def test_the_text_is_the_same_for_ever_and_never_repeats():
    lines = [line for line, _ in zip(sentences(), range(3000), strict=False)]
    assert lines[0] == "1. The second choir carried two maps of the harbour by candle light."
    assert len({line.split(" ", 1)[1] for line in lines}) > 2800
    ids = fixture_ids(1000, lambda text: list(text.encode()))
    assert bytes(ids).decode() == " ".join(lines)[:1000]


def test_the_reference_is_another_set_than_the_measured_one(monkeypatch):
    monkeypatch.delenv("MUSER_ISA", raising=False)
    best = reference_isa()
    monkeypatch.setenv("MUSER_ISA", "c")
    assert reference_isa() != "c" or best == "c"


def test_a_set_is_not_compared_with_itself(monkeypatch):
    monkeypatch.delenv("MUSER_ISA", raising=False)
    best = supported_isas(choose_library(Shelf(libraries()), "c"))[-1]
    if best == "c":
        pytest.skip("this processor has plain C alone")
    assert reference_isa("c") == "c"
    with pytest.raises(UsageError, match=f"--reference {best} is the set that is measured"):
        reference_isa(best)
    monkeypatch.setenv("MUSER_ISA", "c")
    assert reference_isa(best) == best
    with pytest.raises(UsageError):
        reference_isa("c")


def test_the_only_set_is_its_own_reference(monkeypatch):
    monkeypatch.setenv("MUSER_ISA", "c")
    monkeypatch.setattr("muser.kernels.supported_isas", lambda library: ("c",))
    assert reference_isa() == reference_isa("c") == "c"


def test_the_real_side_runs_a_tiny_model(tmp_path, monkeypatch):
    model = tmp_path / "tiny.gguf"
    synthesise(model, architecture="llama", seed=1)
    plan = Plan("decode", model, CELLS, (1,), reference_isa(), 2)
    record = run_plan(plan, look=FakeMachine().look())
    assert [cell["surface"] for run in record["runs"] for cell in run["cells"]] == [
        "decode",
        "prefill",
        "batch",
    ]
    assert all(cell["ours"]["ns"] for run in record["runs"] for cell in run["cells"])
