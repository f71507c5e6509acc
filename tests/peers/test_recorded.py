"""Muser against the ids that llama.cpp was recorded to choose; no peer is needed."""

import json

import numpy as np
import pytest
from agree import cases
from agree.engines import Muser

GOLDEN = json.loads(cases.GOLDEN.read_text(encoding="utf-8"))
SCORED = 8  # of the 24 prompts, to stay within seconds


def test_the_golden_file_is_complete() -> None:
    entries = GOLDEN["prompts"]
    assert len(entries) == 24
    assert len({entry["prompt"] for entry in entries}) == 24
    assert all(len(entry["ids"]) == len(entry["margins"]) == 64 for entry in entries)
    decided = sum(margin > 0.75 for entry in entries for margin in entry["margins"])
    assert decided >= 500


@pytest.mark.models
def test_prompts_become_the_recorded_ids() -> None:
    import muser
    from muser.weights import obtain

    assert cases.sha256(obtain("smollm2-135m")) == GOLDEN["model"]["sha256"]
    with muser.load("smollm2-135m", context=512) as engine:
        for entry in GOLDEN["prompts"]:
            assert engine.tokenizer.encode(entry["prompt"]) == entry["prompt_ids"]


@pytest.mark.models
def test_first_choices_are_the_recorded_ones_where_the_margin_is_large() -> None:
    from muser.weights import obtain

    decided = 0
    with Muser(device="cpu", threads=1).open(obtain("smollm2-135m"), 512) as engine:
        for passage, entry in zip(cases.recorded(SCORED), GOLDEN["prompts"], strict=False):
            blocks = engine.logits(passage.fed, passage.first)
            tops = np.concatenate([block.argmax(axis=1) for block in blocks])
            large = np.array(entry["margins"]) > 0.75
            assert tops[large].tolist() == passage.targets[large].tolist()
            decided += int(large.sum())
    assert decided >= 250
