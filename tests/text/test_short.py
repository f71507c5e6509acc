"""Short texts from a file's lists against the library's tables, which are built for longer ones."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muser.errors import FormatError, UsageError
from muser.text import CHAR_OF, Tokenizer
from muser.text.bpe import BpeEncoder
from muser.text.pretokenizers import PRETOKENIZERS
from muser.text.short import LONGEST, MOST
from tests.text.record import golden_metadata
from tests.text.samples import all_texts
from tests.text.vocabularies import read_merges, vocabulary_metadata

LETTERS = st.text("aeinort st\n1é<|>") | st.text()


def encoder_of(metadata: dict[str, Any]) -> BpeEncoder:
    made = Tokenizer.from_metadata(metadata)._encoder
    assert isinstance(made, BpeEncoder)
    return made


@pytest.fixture(scope="module", params=PRETOKENIZERS)
def encoder(request: pytest.FixtureRequest) -> BpeEncoder:
    return encoder_of(golden_metadata(request.param, read_merges(), True))


def both(encoder: BpeEncoder, text: str) -> tuple[list[int] | None, list[int]]:
    raw = text.encode()
    return encoder._short.encode(text), encoder._by_library(text, raw)


def test_samples(encoder: BpeEncoder) -> None:
    refused = 0
    for text in all_texts():
        short, whole = both(encoder, text)
        assert short in (None, whole), text
        refused += short is None
    assert refused < len(all_texts()) / 10


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe"])
@given(texts=st.lists(LETTERS, max_size=4))
def test_any_texts(pre: str, texts: list[str]) -> None:
    encoder = ENCODERS[pre]
    for text in texts:
        short, whole = both(encoder, text.encode("utf-8", "ignore").decode())
        assert short in (None, whole)


ENCODERS = {
    pre: encoder_of(golden_metadata(pre, read_merges(), True)) for pre in ("smollm", "llama-bpe")
}


def test_a_whole_word_goes_before_its_merges() -> None:
    """llama-bpe: a piece that is a token becomes it, whatever the merges say."""
    metadata = vocabulary_metadata(
        "llama-bpe", ("a b", "c d", "ab c", "abc d"), add_bos_token=False
    )
    metadata["tokenizer.ggml.merges"] = ["c d", "a b"]
    encoder = encoder_of(metadata)
    assert both(encoder, "abcd") == ([259], [259])
    assert both(encoder, "abcde")[0] == both(encoder, "abcde")[1] == [256, 257, ord("e")]


def test_the_library_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of(golden_metadata("smollm", read_merges(), True))
    built = "_library"
    assert encoder.encode("ab " * (MOST // 3), special=False)
    assert built not in vars(encoder)
    assert encoder.encode("ab " * 2, special=False)
    assert built in vars(encoder)
    assert encoder.encode("a", special=True) == [ord("a")]


def test_a_long_piece_is_the_librarys() -> None:
    encoder = encoder_of(golden_metadata("smollm", read_merges(), True))
    assert encoder._short.encode("a" * LONGEST) is not None
    assert encoder._short.encode("a" * (LONGEST + 1)) is None
    assert encoder.encode("a" * (LONGEST + 1), special=False) == both(encoder, "a" * 65)[1]


def test_a_byte_without_a_token_is_the_same_error_either_way() -> None:
    metadata = vocabulary_metadata("smollm", ("a b",))
    metadata["tokenizer.ggml.tokens"][ord("x")] = "other"
    encoder = encoder_of(metadata)
    said = []
    for encode in (encoder._by_lists, encoder._by_library):
        with pytest.raises(UsageError, match=r"no token for U\+0078, character 2") as caught:
            encode("abx", b"abx")
        said.append(caught.value.sentence)
    assert said[0] == said[1]


def test_the_first_and_the_last_token_are_found() -> None:
    metadata = vocabulary_metadata("smollm", ("a b",), ("<|last|>",), ())
    encoder = encoder_of(metadata)
    assert encoder._short.id_of(CHAR_OF[0]) == 0
    assert encoder._short.id_of("<|last|>") == 257
    assert encoder._short.id_of("absent") is None
    assert encoder._short.id_of("a\nb") is None


def test_a_token_twice_is_found_where_it_is_used() -> None:
    metadata = vocabulary_metadata("smollm", ("a b",), ("<|x|>", "ab"), ())
    encoder = encoder_of(metadata)
    assert encoder.encode("a b", special=False) == [97, 32, 98]
    with pytest.raises(FormatError, match="same text"):
        encoder.encode("ab", special=False)
