"""Muser against the ids that llama.cpp was recorded to choose; no peer is needed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agree import cases
from agree.engines import Muser

from muser.formats import GgufFile
from muser.text import Tokenizer
from muser.weights import obtain
from muser.weights.catalogue import named
from muser.weights.terms import are_accepted

MODELS = {"smollm2-135m": cases.GOLDEN, "gemma3-270m": cases.GEMMA_GOLDEN}
SCORED = {"smollm2-135m": 8, "gemma3-270m": 4}  # of the 24 prompts, to stay within seconds


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def golden(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(MODELS[name].read_text(encoding="utf-8"))
    return read


@pytest.fixture
def model(name: str) -> Path:
    """The model's file, fetched where that needs no answer from a person."""
    entry = named(name)
    assert entry is not None
    if not entry.is_here and entry.terms and not are_accepted(entry.terms):
        pytest.skip(f"{entry.terms.title} have to be accepted first")
    return obtain(name)


def test_the_golden_file_is_complete(golden: dict[str, Any]) -> None:
    entries = golden["prompts"]
    assert len(entries) == 24
    assert len({entry["prompt"] for entry in entries}) == 24
    assert all(len(entry["ids"]) == len(entry["margins"]) == 64 for entry in entries)
    decided = sum(margin > 0.75 for entry in entries for margin in entry["margins"])
    assert decided >= 500


@pytest.mark.models
def test_prompts_become_the_recorded_ids(model: Path, golden: dict[str, Any]) -> None:
    assert cases.sha256(model) == golden["model"]["sha256"]
    assert cases.golden_of(model) in MODELS.values()
    with GgufFile.open(model) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        for entry in golden["prompts"]:
            assert tokenizer.encode(entry["prompt"]) == entry["prompt_ids"]


@pytest.mark.models
def test_first_choices_are_the_recorded_ones_where_the_margin_is_large(
    name: str, model: Path, golden: dict[str, Any]
) -> None:
    decided, prompts = 0, SCORED[name]
    with Muser(device="cpu", threads=1).open(model, 512) as engine:
        passages = cases.recorded(prompts, MODELS[name])
        for passage, entry in zip(passages, golden["prompts"], strict=False):
            blocks = engine.logits(passage.fed, passage.first)
            tops = np.concatenate([block.argmax(axis=1) for block in blocks])
            large = np.array(entry["margins"]) > 0.75
            assert tops[large].tolist() == passage.targets[large].tolist()
            decided += int(large.sum())
    assert decided >= 30 * prompts
