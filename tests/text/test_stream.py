"""Whole characters only, stop strings across tokens: the same outcome for every cut."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muser.text import StopStrings, StreamDecoder, Tokenizer
from tests.text.vocabularies import vocabulary_metadata

TOKENIZER = Tokenizer.from_metadata(vocabulary_metadata("llama4", ("a b",)))
CONTROL = 257


def stream(ids: list[int]) -> list[str]:
    decoder = StreamDecoder(TOKENIZER)
    return [*(decoder.feed(i) for i in ids), decoder.finish()]


def test_nothing_before_a_character_is_whole() -> None:
    assert stream([*"😀é".encode()]) == ["", "", "", "😀", "", "é", ""]


def test_invalid_bytes() -> None:
    assert stream([0xF0, 0x9F, 0x61]) == ["", "", "\ufffda", ""]
    assert stream([0xFF, 0x80]) == ["\ufffd", "\ufffd", ""]
    assert stream([0xE2, 0x82]) == ["", "", "\ufffd"]


def test_controls_add_nothing_unless_asked() -> None:
    assert stream([0xC3, CONTROL, 0xA9]) == ["", "", "é", ""]
    decoder = StreamDecoder(TOKENIZER, special=True)
    assert decoder.feed(CONTROL) == "<|begin_of_text|>"


def test_finish_makes_ready_for_another_text() -> None:
    decoder = StreamDecoder(TOKENIZER)
    assert (decoder.feed(0xC3), decoder.finish(), decoder.finish()) == ("", "\ufffd", "")
    assert decoder.feed(0xA9) == "\ufffd"


byte_lists = st.one_of(
    st.lists(st.integers(0, 255), max_size=40),
    st.text(max_size=20).map(lambda text: [*text.encode("utf-8", "surrogatepass")]),
    st.lists(st.sampled_from([0x61, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0xED, 0xA0])),
)


@settings(max_examples=300, deadline=None)
@given(byte_lists)
def test_the_stream_is_the_text(ids: list[int]) -> None:
    pieces = stream(ids)
    assert "".join(pieces) == bytes(ids).decode("utf-8", "replace") == TOKENIZER.decode(ids)


def cut(text: str, stops: list[str], places: list[int]) -> tuple[str, str | None]:
    filter_ = StopStrings(stops)
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    out = "".join(filter_.feed(text[a:b]) for a, b in pairwise(bounds))
    return out + filter_.finish(), filter_.matched


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop that is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=500, deadline=None)
@given(
    st.text("abc", max_size=24),
    st.lists(st.text("abc", max_size=4), max_size=4),
    st.lists(st.integers(0, 100), max_size=8),
)
def test_stops_do_not_depend_on_the_cut(text: str, stops: list[str], places: list[int]) -> None:
    assert cut(text, stops, places) == expected(text, stops)


def test_what_cannot_be_a_stop_is_returned_at_once() -> None:
    stops = StopStrings(["\n\nUser:", "END"])
    assert stops.feed("Hello") == "Hello"
    assert stops.feed(" E") == " "
    assert stops.feed("N.") == "EN."
    assert stops.feed("a\n") == "a"
    assert stops.feed("\n\n") == "\n"
    assert not stops.hit
    assert stops.feed("User: more") == ""
    assert stops.hit
    assert (stops.matched, stops.feed("x"), stops.finish()) == ("\n\nUser:", "", "")


def test_finish_returns_an_unfinished_stop() -> None:
    stops = StopStrings(("stop",))
    assert (stops.feed("a sto"), stops.finish(), stops.finish()) == ("a ", "sto", "")
    assert not stops.hit


@pytest.mark.parametrize("stops", [(), ("",)])
def test_no_stops_hold_nothing_back(stops: tuple[str, ...]) -> None:
    filter_ = StopStrings(stops)
    assert filter_.feed("anything") == "anything"
    assert not filter_.hit
