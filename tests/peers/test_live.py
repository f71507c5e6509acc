"""Muser beside a live llama.cpp: a short form of `bench/agree.py`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agree import cases
from agree.engines import LlamaCpp, Muser

from muser.weights import obtain

pytestmark = pytest.mark.peers
PROMPTS = 6


@pytest.fixture
def pair(peer: LlamaCpp, tmp_path: Path) -> Iterator[cases.Pair]:
    with Muser(device="cpu", threads=1) as candidate:
        yield cases.Pair(peer, candidate, obtain("smollm2-135m"), tmp_path)


def test_first_choices_agree_where_llama_cpp_is_decided(pair: cases.Pair) -> None:
    found = cases.greedy(pair, PROMPTS)["top_choice"]
    decided = found["bounds"][0]
    assert found["positions"] == PROMPTS * 64
    assert decided["positions"] >= 200
    assert decided["disagreements"] == 0


@pytest.mark.parametrize("architecture", cases.TINY)
def test_tiny_models_agree_far_beyond_their_windows(pair: cases.Pair, architecture: str) -> None:
    found = cases.tiny(pair, architecture)
    assert found["logit_error"]["rows"] == 1536
    assert found["passed"], found


def test_text_becomes_the_same_ids(pair: cases.Pair) -> None:
    from muser.formats import GgufFile
    from muser.text import Tokenizer

    texts = [
        "Hello, world!  Two spaces,\ttab\n\n\nnewlines   \n end ",
        "naïve café — “quotes” … 12345678 3.14 x²",
        "日本語のテキスト 😀👩‍👩‍👧 Ελληνικά русский",
        "it's we'll I'VE don't\r\n\r\n  def f(x):\n\t\treturn x**2",
    ]
    pair.reference.open(pair.model, 512)
    with GgufFile.open(pair.model) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        assert [tokenizer.encode(text) for text in texts] == [
            pair.reference.tokenize(text) for text in texts
        ]
