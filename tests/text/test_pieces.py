"""SentencePiece: merges against a plain reference, specials, spaces, bytes, and bad files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muser.errors import FormatError, ModelError, UsageError
from muser.text import StreamDecoder, Tokenizer
from muser.text.pieces import PieceEncoder, merge
from tests.text.piece_vocabulary import CONTROLS, LETTERS, USER_DEFINED, piece_metadata
from tests.text.samples import all_texts

TEXTS = st.one_of(
    st.text(st.sampled_from(LETTERS), max_size=40),
    st.lists(st.sampled_from([*CONTROLS, *USER_DEFINED, " ", "the ", "a", "é"]), max_size=12).map(
        "".join
    ),
)


def tokenizer(**keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(piece_metadata(**keys))


def encoder(made: Tokenizer) -> PieceEncoder:
    made.encode("")
    assert isinstance(made._encoder, PieceEncoder)
    return made._encoder


EVERY = bytes(range(256))


def names(made: Tokenizer, ids: Sequence[int]) -> list[str]:
    return [made.vocabulary.texts[i] for i in ids]


def merged_plainly(word: str, ids: Mapping[bytes, int], ranks: Sequence[float]) -> list[bytes]:
    """The definition: look at all neighbours, merge the best pair, begin again."""
    pieces = [char.encode() for char in word]
    while True:
        pairs = [
            (ranks[ids[left + right]], at)
            for at, (left, right) in enumerate(pairwise(pieces))
            if left + right in ids
        ]
        if not pairs:
            return pieces
        _, at = min(pairs)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def parted_plainly(text: str, known: Mapping[str, int]) -> list[str | int]:
    """The definition: for each name, the longest first, cut every part that is still text."""
    parts: list[str | int] = [text]
    for name in sorted(known, key=lambda name: -len(name.encode())):
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            for place, piece in enumerate(part.split(name)):
                cut += [known[name]] * (place > 0) + [piece] * bool(piece)
        parts = cut
    return parts


@settings(deadline=None, max_examples=300)
@given(word=st.text(st.sampled_from(LETTERS), max_size=60))
def test_merges_equal_the_definition(word: str) -> None:
    made = encoder(tokenizer())
    ids = made.lexicon.covering(EVERY)
    assert list(merge(word.encode(), ids, made.ranks)) == merged_plainly(word, ids, made.ranks)


@settings(deadline=None, max_examples=300)
@given(text=TEXTS, special=st.booleans(), prefix=st.booleans())
def test_ids_equal_the_definition(text: str, special: bool, prefix: bool) -> None:
    made = tokenizer(add_space_prefix=prefix)
    inner = encoder(made)
    ids = inner.lexicon.covering(EVERY)
    searched = [*USER_DEFINED, *CONTROLS] if special else USER_DEFINED
    known = {name: made.vocabulary.texts.index(name) for name in searched}
    wanted: list[int] = []
    after = True
    for part in parted_plainly(text, known):
        if isinstance(part, int):
            wanted.append(part)
            after = True
            continue
        spaced = (" " * (prefix and after) + part).replace(" ", "\u2581")
        for piece in merged_plainly(spaced, ids, inner.ranks):
            named = [ids[b"<0x%02X>" % byte] for byte in piece]
            wanted += [ids[piece]] if piece in ids else named
        after = False
    assert made.encode(text, special=special, bos=False) == wanted


@settings(deadline=None, max_examples=200)
@given(text=st.one_of(TEXTS, st.text(max_size=40)))
def test_cuts_change_nothing_and_text_comes_back(text: str) -> None:
    made = tokenizer(add_space_prefix=False)
    inner = encoder(made)
    assert inner.cuts is not None
    ids = inner.encode(text, special=False)
    assert replace(inner, cuts=None).encode(text, special=False) == ids
    assert made.decode(ids) == text.replace("\u2581", " ")
    stream = StreamDecoder(made)
    assert "".join(map(stream.feed, ids)) + stream.finish() == text.replace("\u2581", " ")


def test_cuts_stand_only_where_no_token_passes() -> None:
    cuts = encoder(tokenizer()).cuts
    assert cuts is not None
    assert cuts.split("x▁a▁b>▁<e▁n▁▁h") == ["x", "▁a▁b>▁<e▁n▁▁h"]
    none = encoder(Tokenizer.from_metadata(piece_metadata(["▁a", "ab"]))).cuts
    assert none is not None
    assert none.split("x▁a▁▁b") == ["x", "▁a", "▁", "▁b"]


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [
        ((0, 0, -1), ["ab", "ab"]),
        ((0, 0, 0), ["aba", "b"]),
        ((-1, 0, -2), ["aba", "b"]),
    ],
)
def test_the_highest_score_first_then_the_leftmost(
    scores: tuple[float, ...], wanted: list[str]
) -> None:
    letters = len(dict.fromkeys(LETTERS.replace(" ", "").replace("\n", "")))
    given = piece_metadata(("ab", "ba", "aba"), [*[0.0] * letters, *scores])
    made = Tokenizer.from_metadata(given | {"tokenizer.ggml.add_space_prefix": False})
    assert names(made, made.encode("abab", bos=False)) == wanted


def test_a_space_stands_before_a_text_and_after_a_special_token() -> None:
    made = tokenizer()
    assert names(made, made.encode("the<s>an", special=True)) == ["<bos>", "▁the", "<s>", "▁an"]
    bare = tokenizer(add_space_prefix=False)
    assert names(bare, bare.encode("the an", bos=False)) == ["the", "▁an"]
    assert made.encode("") == [made.bos_id]
    assert made.encode("", bos=False) == []


def test_user_defined_tokens_are_found_first_and_control_tokens_never_in_plain_text() -> None:
    made = tokenizer(add_space_prefix=False)
    text = "<s>\n\n\n\n<h1>a<b><bos>  an"
    found = names(made, made.encode(text, bos=False))
    assert found == [*"<s>", "\n\n\n", "\n", "<h1>", "a", "<", "b><b", *"os>", "  ", "an"]
    assert made.decode(made.encode(text, bos=False)) == text
    kinds = made.vocabulary.kinds
    for name in CONTROLS:
        assert not {kinds[i] for i in made.encode(name, bos=False)} & {2, 3}
        assert names(made, made.encode(name, special=True, bos=False)) == [name]


def test_characters_without_a_token_become_bytes() -> None:
    made = tokenizer(add_space_prefix=False)
    ids = made.encode("ü\u0000日", bos=False)
    assert names(made, ids) == ["<0xC3>", "<0xBC>", "<0x00>", "日"]
    assert made.decode(ids) == "ü\u0000日"
    assert made.token_bytes(ids[0]) == b"\xc3"
    assert made.decode(ids[:1]) == "\ufffd"


def test_bytes_without_a_token_are_an_error() -> None:
    given = piece_metadata()
    given["tokenizer.ggml.tokens"][given["tokenizer.ggml.tokens"].index("<0xBC>")] = "[gone]"
    made = Tokenizer.from_metadata(given)
    made.encode("ö")
    with pytest.raises(UsageError, match=r"U\+00FC, character 3"):
        made.encode("an ü")
    with pytest.raises(UsageError, match="character 1"):
        made.encode("a\ud800")


def test_every_sample_comes_back() -> None:
    made = tokenizer(add_space_prefix=False)
    for text in all_texts():
        assert made.decode(made.encode(text, bos=False)) == text


@pytest.mark.parametrize(
    "text", ["a" * 30_000, "ab" * 20_000, "\n" * 30_001, " " * 30_001, "é" * 9]
)
def test_long_texts_without_a_cut(text: str) -> None:
    made = tokenizer(add_space_prefix=False)
    assert made.decode(made.encode(text, bos=False)) == text


def test_defaults_are_llama_cpps() -> None:
    given = piece_metadata()
    for key in ("bos_token_id", "eos_token_id"):
        del given[f"tokenizer.ggml.{key}"]
    made = Tokenizer.from_metadata(given)
    assert (made.bos_id, made.eos_id, made.adds_bos) == (1, 2, True)
    assert made.stop_ids == {2, CONTROLS.index("<end_of_turn>")}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scores", np.zeros(3, np.float32)),
        ("scores", ["x"]),
        ("add_space_prefix", 1),
    ],
)
def test_bad_keys_are_named(key: str, value: Any) -> None:
    given = piece_metadata() | {f"tokenizer.ggml.{key}": value}
    with pytest.raises(FormatError, match=key):
        Tokenizer.from_metadata(given).encode("a")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])  # the last is no float32
def test_scores_that_are_no_numbers_are_refused(value: float) -> None:
    given = piece_metadata()
    given["tokenizer.ggml.scores"] = given["tokenizer.ggml.scores"].astype(np.float64)
    given["tokenizer.ggml.scores"][300] = value
    with pytest.raises(FormatError, match="scores"):
        Tokenizer.from_metadata(given).encode("a")


def test_two_tokens_of_one_text() -> None:
    """Seen by the first text that could become either."""
    given = piece_metadata()
    given["tokenizer.ggml.tokens"][given["tokenizer.ggml.tokens"].index("999")] = "the"
    assert Tokenizer.from_metadata(given).encode("a")
    with pytest.raises(FormatError, match="same text"):
        Tokenizer.from_metadata(given).encode("the")


@settings(deadline=None, max_examples=100)
@given(first=TEXTS, second=TEXTS)
def test_a_lexicon_holds_what_the_texts_so_far_can_need(first: str, second: str) -> None:
    whole, growing = encoder(tokenizer()), encoder(tokenizer())
    every = whole.lexicon.covering(EVERY)
    for text in (first, second, first):
        known = growing.lexicon.covering(text.encode())
        needed = {piece: i for piece, i in every.items() if set(piece) <= set(text.encode())}
        assert needed.items() <= known.items() <= every.items()
        assert growing.encode(text, special=False) == whole.encode(text, special=False)
    assert growing.lexicon.covering(EVERY) == every


def test_scores_may_be_missing() -> None:
    given = piece_metadata()
    del given["tokenizer.ggml.scores"]
    assert Tokenizer.from_metadata(given).encode("the")


def test_other_models_are_refused_with_both_names() -> None:
    with pytest.raises(ModelError, match=r"gpt2.*llama"):
        tokenizer(model="rwkv")
