"""Ids equal those that llama.cpp gave for the same texts (`record.py` made the goldens)."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from muser.text import Tokenizer
from muser.text.pretokenizers import PRETOKENIZERS
from tests.text.record import golden_metadata, texts_digest
from tests.text.samples import all_texts
from tests.text.vocabularies import DATA, read_merges, vocabulary_metadata


@pytest.fixture(scope="module")
def goldens() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "goldens.json").read_text("utf-8"))
    assert found["texts"] == texts_digest(), "record the goldens again: the samples changed"
    return found


def differing(
    tokenizer: Tokenizer, wanted: Sequence[Sequence[int]], special: bool
) -> list[tuple[str, list[int]]]:
    texts = all_texts()
    assert len(texts) == len(wanted) >= 300
    return [
        (text, ids)
        for text, golden in zip(texts, wanted, strict=True)
        if (ids := tokenizer.encode(text, special=special, bos=False)) != golden
    ]


@pytest.mark.parametrize("pre", PRETOKENIZERS)
def test_ids_equal_llama_cpp(pre: str, goldens: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(golden_metadata(pre, read_merges(), False))
    assert differing(tokenizer, goldens["plain"][pre], False) == []


def test_special_tokens_equal_llama_cpp(goldens: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(golden_metadata("llama4", read_merges(), True))
    assert differing(tokenizer, goldens["special"]["llama4"], True) == []


@pytest.mark.parametrize("pre", PRETOKENIZERS)
def test_text_comes_back(pre: str) -> None:
    tokenizer = Tokenizer.from_metadata(vocabulary_metadata(pre, read_merges(), bos_token_id=0))
    for text in all_texts():
        assert tokenizer.decode(tokenizer.encode(text, bos=False)) == text
