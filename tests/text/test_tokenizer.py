"""Ids, special tokens, the first token, stops, and files that contradict themselves."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from muser.errors import FormatError, ModelError, UsageError
from muser.text import Tokenizer
from tests.text.vocabularies import CONTROLS, vocabulary_metadata

MERGES = ("h i", "Ġ hi", "a b")
BOS, START, END, SHORT, LONG = range(256 + len(MERGES), 256 + len(MERGES) + len(CONTROLS))
TOOL = LONG + 1
SIZE = TOOL + 1


def metadata(pre: str = "llama4", **keys: Any) -> dict[str, Any]:
    return vocabulary_metadata(pre, MERGES, **{"bos_token_id": BOS, **keys})


def tokenizer(pre: str = "llama4", **keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(metadata(pre, **keys))


def test_bytes_and_merges() -> None:
    ids = tokenizer().encode("hi hi\x00é")
    assert ids == [256, 257, 0, 0xC3, 0xA9]
    assert [tokenizer().token_bytes(i) for i in ids] == [b"hi", b" hi", b"\0", b"\xc3", b"\xa9"]


def test_merge_of_lowest_rank_then_leftmost() -> None:
    lines = ("b c", "a b", "a a")
    made = Tokenizer.from_metadata(vocabulary_metadata("llama4", lines))
    names = {256: b"bc", 257: b"ab", 258: b"aa"}
    assert [names.get(i) for i in made.encode("abc")] == [None, b"bc"]
    assert [names.get(i) for i in made.encode("aaa")] == [b"aa", None]


def test_first_of_equal_merges_counts() -> None:
    lines = ("b c", "a b", "b c")
    made = Tokenizer.from_metadata(vocabulary_metadata("llama4", lines))
    assert made.encode("abc") == [ord("a"), 256]


def test_specials_only_when_asked() -> None:
    made = tokenizer()
    text = "a<|im_end|><tool>"
    assert END not in made.encode(text)
    assert TOOL not in made.encode(text)
    assert made.encode(text, special=True) == [ord("a"), END, TOOL]
    assert made.decode(made.encode(text)) == text


def test_earliest_special_then_longest() -> None:
    made = tokenizer()
    assert made.encode("<|a|>|>", special=True) == [LONG]
    assert made.encode("<|a|>|", special=True) == [SHORT, ord("|")]
    assert made.encode("<|<|a|>", special=True) == [*b"<|", SHORT]


@pytest.mark.parametrize("special", [False, True])
def test_no_text_has_no_ids(special: bool) -> None:
    assert tokenizer().encode("", special=special) == []


def test_bos_follows_the_file() -> None:
    assert tokenizer().encode("a") == [ord("a")]
    assert tokenizer(add_bos_token=True).encode("a") == [BOS, ord("a")]
    assert tokenizer(add_bos_token=True).encode("") == [BOS]
    assert tokenizer("llama-bpe").encode("a") == [BOS, ord("a")]
    assert tokenizer("llama-bpe", add_bos_token=False).encode("a") == [ord("a")]


def test_bos_on_request_and_never_twice() -> None:
    made = tokenizer(add_bos_token=True)
    assert made.encode("a", bos=False) == [ord("a")]
    assert tokenizer().encode("a", bos=True) == [BOS, ord("a")]
    assert made.encode("<|begin_of_text|>a", special=True) == [BOS, ord("a")]
    literal = made.encode("<|begin_of_text|>a")
    assert literal[0] == BOS
    assert made.decode(literal[1:]) == "<|begin_of_text|>a"


def test_bos_that_does_not_exist() -> None:
    made = tokenizer(bos_token_id=None)
    assert made.bos_id is None
    with pytest.raises(ModelError, match="bos_token_id"):
        made.encode("a", bos=True)


def test_stops_are_eos_and_eot_never_eom() -> None:
    controls = ("<|end_of_text|>", "<|eom|>", "<|eot|>", "<|start|>", "<|message|>")
    muse = Tokenizer.from_metadata(
        vocabulary_metadata(
            "llama4", ("a b",), controls, (), eos_token_id=257, eot_token_id=259, eom_token_id=258
        )
    )
    assert muse.stop_ids == {257, 259}
    assert (muse.eos_id, muse.bos_id) == (257, None)


def test_stops_by_name() -> None:
    controls = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>")
    made = Tokenizer.from_metadata(
        vocabulary_metadata("smollm", ("a b",), controls, (), eos_token_id=259)
    )
    assert made.stop_ids == {257, 259, 261}


def test_message_end_is_no_stop_beside_a_turn_end() -> None:
    controls = ("<|end|>", "<|return|>", "<|call|>")
    both = Tokenizer.from_metadata(vocabulary_metadata("gpt-4o", ("a b",), controls, ()))
    assert both.stop_ids == {258, 259}
    alone = Tokenizer.from_metadata(vocabulary_metadata("gpt-4o", ("a b",), controls[:2], ()))
    assert alone.stop_ids == {257, 258}


def test_ordinary_text_is_no_stop() -> None:
    merges = ("< /", "</ s", "</s >")
    made = Tokenizer.from_metadata(vocabulary_metadata("gpt-2", merges, (), ()))
    assert made.stop_ids == frozenset()


def test_decode_leaves_controls_out() -> None:
    made = tokenizer()
    ids = made.encode("<|im_start|>hi<tool>", special=True)
    assert made.decode(ids) == "hi<tool>"
    assert made.decode(ids, special=True) == "<|im_start|>hi<tool>"
    assert made.decode([0xC3, START, 0xA9]) == "é"
    assert made.decode([0xC3, 0x61]) == "\ufffda"


def test_kinds_decide_the_bytes() -> None:
    given = vocabulary_metadata("llama4", ("a b",), ("<0x0A>", "<unused>", "€", "Ġ"), ())
    given["tokenizer.ggml.token_type"][257:] = (6, 5, 1, 3)
    made = Tokenizer.from_metadata(given)
    assert [made.token_bytes(i) for i in range(257, 261)] == [
        b"\n",
        b"",
        "€".encode(),
        "Ġ".encode(),
    ]


def test_bytes_without_a_token_are_an_error() -> None:
    given = metadata()
    given["tokenizer.ggml.tokens"][ord("z")] = "[gone]"
    made = Tokenizer.from_metadata(given)
    assert made.encode("hi") == [256]
    with pytest.raises(UsageError, match=r"U\+007A, character 4"):
        made.encode("é hiz")


def test_half_a_surrogate_pair_is_an_error() -> None:
    with pytest.raises(UsageError, match="character 1"):
        tokenizer().encode("a\ud800")


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("model", None, ModelError),
        ("model", "bert", ModelError),
        ("model", np.arange(2), ModelError),
        ("pre", None, ModelError),
        ("pre", "mystery", ModelError),
        ("pre", 3, ModelError),
        ("tokens", None, ModelError),
        ("tokens", [], ModelError),
        ("tokens", [np.arange(2)] * SIZE, ModelError),
        ("token_type", np.zeros(3, np.int32), FormatError),
        ("token_type", ["x"] * SIZE, FormatError),
        ("token_type", np.full(SIZE, 7), FormatError),
        ("token_type", np.full(SIZE, -1), FormatError),
        ("token_type", np.ones(SIZE, np.float32), FormatError),
        ("bos_token_id", 1 << 20, FormatError),
        ("eos_token_id", -1, FormatError),
        ("eot_token_id", "2", FormatError),
        ("eos_token_id", True, FormatError),
        ("add_bos_token", 1, FormatError),
    ],
)
def test_bad_keys_are_named(key: str, value: Any, error: type[Exception]) -> None:
    given = metadata()
    if value is None:
        del given[f"tokenizer.ggml.{key}"]
    else:
        given[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(error, match=key):
        Tokenizer.from_metadata(given)


def test_bos_wanted_but_missing() -> None:
    with pytest.raises(FormatError, match="bos_token_id"):
        tokenizer(bos_token_id=None, add_bos_token=True)


@pytest.mark.parametrize(
    ("merges", "error"),
    [
        (None, ModelError),
        ([], ModelError),
        ([np.arange(2)], ModelError),
        (["ab"], FormatError),
        (["a b c", "ab"], FormatError),
        ([" a", "b "], FormatError),
        (["a\nb c"], FormatError),
    ],
)
def test_bad_merges(merges: Any, error: type[Exception]) -> None:
    given = metadata()
    given["tokenizer.ggml.merges"] = merges
    made = Tokenizer.from_metadata(given)
    with pytest.raises(error, match="merges"):
        made.encode("a")


@pytest.mark.parametrize("merge", ["a zz", "a c"])
def test_merges_that_fit_no_token(merge: str) -> None:
    """Said where one is used, or where a long text has all of them looked at."""
    given = metadata()
    given["tokenizer.ggml.merges"] = [merge]
    with pytest.raises(FormatError, match="merges of this file do not fit"):
        Tokenizer.from_metadata(given).encode("b" * 3000)
    assert Tokenizer.from_metadata(given).encode("a") == [ord("a")]
    if merge == "a c":
        with pytest.raises(FormatError, match="merges of this file do not fit its tokens: 'ac'"):
            Tokenizer.from_metadata(given).encode("ac")


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_lists_that_are_not_utf8(key: str) -> None:
    given = metadata()
    given[f"tokenizer.ggml.{key}"][1] = "a \udcff" if key == "merges" else "\udcff"
    with pytest.raises(FormatError, match=f"{key} holds an entry that is not UTF-8"):
        Tokenizer.from_metadata(given).encode("a")


def test_two_tokens_of_one_text() -> None:
    given = metadata()
    given["tokenizer.ggml.tokens"][START] = "<|im_end|>"
    for text in ("<|im_end|>", "b" * 3000):
        with pytest.raises(FormatError, match="same text"):
            Tokenizer.from_metadata(given).encode(text, special=True)
    assert Tokenizer.from_metadata(given).encode("a", special=True) == [ord("a")]


def test_a_token_may_hold_a_line_feed() -> None:
    made = Tokenizer.from_metadata(vocabulary_metadata("llama4", ("a b",), ("<|x\ny|>",), ()))
    assert made.encode("ab<|x\ny|>", special=True) == [256, 257]


def test_long_pieces() -> None:
    made = tokenizer()
    for text in ("é" * 20_000, "A" * 20_000, " " * 20_000, "aB" * 10_000):
        assert made.decode(made.encode(text)) == text


def test_libraries_wait_for_their_use() -> None:
    loaded = (
        "import sys, muser.text; print([m for m in ('tokenizers', 'jinja2') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
