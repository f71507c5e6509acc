import pytest

from muser.bench.cells import Cell, Workload, first_difference, measure
from muser.errors import WrongTokens
from tests.bench.fakes import CountingSide

TEXT = tuple(range(1, 400))
DECODE = Cell("decode", 3, 4)


def workload(cell):
    return Workload.make(cell, TEXT, CountingSide("reference"))


def test_the_reference_decides_what_is_fed_and_what_must_come_out():
    work = workload(DECODE)
    assert work.prompts == ((1, 2, 3),)
    assert work.fed == ((4, 10, 20, 40),)
    assert work.ids == (10, 20, 40, 80)
    sample = work.run(CountingSide())
    assert (sample.ids, sample.logits_sha256) == (work.ids, ("logits 80",))
    work.require(sample)


def test_a_prefill_takes_all_at_once():
    work = workload(Cell("prefill", 0, 5))
    assert (work.prompts, work.fed, work.ids) == (((),), ((1, 2, 3, 4, 5),), (15,))


def test_slots_read_different_texts():
    work = workload(Cell("batch", 1, 2, slots=2))
    assert work.fed == ((2, 3), (63, 125))
    assert work.cell.timed == 4
    assert work.cell.text_ids == 63


def test_without_a_rival_every_repetition_is_told():
    side = CountingSide(ns=(99, 10, 30, 20))  # 99 is the warm-up
    found = measure(workload(DECODE), side, None, 3)
    assert found["ours"]["ns"] == [10, 30, 20]
    assert found["ours"]["median_ns"] == 20
    assert found["ours"]["tokens_per_second"] == 4 / 20 * 1e9
    assert len(found["ours"]["ids_sha256"]) == 1
    assert "theirs" not in found


def test_sides_take_turns_after_one_warm_up_each():
    calls = []
    ours, theirs = CountingSide("o", calls=calls), CountingSide("t", ns=(1500,), calls=calls)
    found = measure(workload(DECODE), ours, theirs, 3)
    assert calls == ["o", "t", "o", "t", "t", "o", "o", "t"]
    assert found["first"] == ["o", "t", "o"]
    assert found["ratios"] == {"of_medians": 1.5, "each": [1.5] * 3, "least": 1.5}
    assert found["agreement"]["exact"] is True
    assert found["agreement"]["first_difference"] is None


@pytest.mark.parametrize("wrong", [1, 2, 4])
@pytest.mark.parametrize("rival", [True, False])
def test_wrong_tokens_tell_no_speed_in_any_repetition(wrong, rival):
    theirs = CountingSide("t") if rival else None
    with pytest.raises(WrongTokens, match="choice 3 is 81, the reference chose 80"):
        measure(workload(DECODE), CountingSide(wrong=wrong), theirs, 3)


def test_equal_tokens_with_other_logits_are_wrong_too():
    work = workload(DECODE)
    sample = CountingSide().decode([[0, 0]], [[10, 10, 20, 40]])
    assert sample.ids == work.ids
    other = Workload(work.cell, work.prompts, work.fed, work.ids, ("logits 81",))
    with pytest.raises(WrongTokens, match="not the reference's bits"):
        other.require(sample)


def test_a_rival_that_differs_is_told_so_with_margins():
    found = measure(workload(DECODE), CountingSide(), CountingSide("t", always_off=True), 2)
    agreement = found["agreement"]
    assert agreement["exact"] is False
    assert (agreement["first_difference"], agreement["differences"]) == (3, 1)
    assert (agreement["our_margin"], agreement["their_margin"]) == (0.25, 0.25)
    assert agreement["repeats_itself"] is True
    assert found["ratios"]["of_medians"] == 1.0


def test_a_rival_that_does_not_repeat_itself_is_told_so():
    found = measure(workload(DECODE), CountingSide(), CountingSide("t", wrong=2), 2)
    assert found["agreement"]["exact"] is True
    assert found["agreement"]["repeats_itself"] is False
    assert len(found["theirs"]["ids_sha256"]) == 2


def test_lists_of_other_lengths_differ_where_the_shorter_ends():
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([1, 9, 3], [1, 2]) == 1
