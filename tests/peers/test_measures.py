"""The statistics on logits that are made up, against values computed by hand."""

import math
from pathlib import Path

import numpy as np
from agree.measures import Bound, LogitError, compare_losses, compare_tops
from agree.scores import Scores, score

LN2 = math.log(2)


def scores(top: list[int], margin: list[float], loss: list[float] | None = None) -> Scores:
    return Scores(np.array(top), np.array(margin), np.array(loss or [0.0] * len(top)))


def test_a_row_keeps_its_first_choice_margin_and_loss() -> None:
    zeros = np.zeros((1, 4), np.float32)
    peaked = np.array([[0.0, 3.0, 1.5, -2.0]], np.float32)
    found = score(np.concatenate([zeros, peaked]), np.array([2, 1]))
    assert found.top.tolist() == [0, 1]
    assert found.margin.tolist() == [0.0, 1.5]
    total = sum(math.exp(x - 3.0) for x in (0.0, 3.0, 1.5, -2.0))
    np.testing.assert_array_max_ulp(found.loss, np.array([2 * LN2, math.log(total)]), 16)


def test_large_logits_do_not_overflow_and_blocks_join_in_order() -> None:
    logits = np.full((100, 2), -3e4, np.float32)
    logits[:, 0] = np.arange(100)
    found = score(logits, np.zeros(100, np.int64))
    assert found.loss.tolist() == [0.0] * 100
    assert found.margin.tolist() == [3e4 + i for i in range(100)]


def test_scores_survive_a_file(tmp_path: Path) -> None:
    kept = scores([3, 1], [0.5, 0.25], [1.0, 2.0])
    kept.save(tmp_path / "scores.npz")
    again = Scores.load(tmp_path / "scores.npz")
    assert again.top.tolist() == [3, 1]
    assert again.margin.tolist() == [0.5, 0.25]
    assert again.loss.tolist() == [1.0, 2.0]
    assert [path.name for path in tmp_path.iterdir()] == ["scores.npz"]


def test_a_disagreement_counts_only_beyond_the_margin() -> None:
    reference = scores([1, 2, 3, 4], [0.8, 0.75, 0.2, 0.05])
    candidate = scores([1, 9, 9, 9], [9.0, 9.0, 9.0, 9.0])
    bounds = (Bound(0.75, 0.0, 1), Bound(0.1, 2 / 3, 3))
    found = compare_tops(reference, candidate, bounds)
    assert (found.positions, found.disagreements, found.largest_margin) == (4, 3, 0.75)
    assert [(held.positions, held.disagreements) for held in found.bounds] == [(1, 0), (3, 2)]
    assert found.passed


def test_each_bound_can_be_broken() -> None:
    agreeing, other = scores([1, 1], [1.0, 1.0]), scores([1, 2], [1.0, 1.0])
    assert compare_tops(agreeing, agreeing, (Bound(0.5, 0.0, 2),)).passed
    assert not compare_tops(agreeing, other, (Bound(0.5, 0.0, 2),)).passed
    assert compare_tops(agreeing, other, (Bound(0.5, 0.5, 2),)).passed
    assert not compare_tops(agreeing, agreeing, (Bound(0.5, 0.0, 3),)).passed


def test_losses_are_paired_by_chunk() -> None:
    reference = [scores([0, 0], [1.0, 1.0], [1.0, 3.0]), scores([0], [1.0], [5.0])]
    candidate = [scores([0, 0], [1.0, 1.0], [1.5, 3.0]), scores([0], [1.0], [5.75])]
    found = compare_losses(reference, candidate, bound=0.5)
    assert (found.chunks, found.tokens) == (2, 3)
    assert (found.reference, found.candidate, found.difference) == (3.5, 4.0, 0.5)
    assert found.standard_error == 0.25
    assert found.passed
    assert not compare_losses(candidate, reference, bound=0.49).passed


def test_the_logit_error_is_of_norms_over_all_rows() -> None:
    error = LogitError(bound=0.1)
    error.add(np.array([[3.0, 4.0]], np.float32), np.array([[3.0, 4.5]], np.float32))
    assert error.record() == {
        "relative": 0.1,
        "worst_row": 0.1,
        "rows": 1,
        "bound": 0.1,
        "passed": True,
    }
    error.add(np.array([[0.0, 1.0]], np.float32), np.array([[0.0, 0.0]], np.float32))
    assert error.record()["passed"] is False
    assert error.record()["worst_row"] == 1.0
