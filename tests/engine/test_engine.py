"""The engine on a fake runner: loop, limits, stops, cancelling, the chain of hashes."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from muser.engine import Engine, Sampling
from muser.errors import FormatError, LimitError, UsageError
from muser.text import ChatTemplate
from tests.engine.fakes import STOP, VOCABULARY, ByteTokenizer, FakeRunner, writing

MADE = []


def engine_on(runner, verify_unchanged=lambda: None):
    graph = SimpleNamespace(vocabulary=VOCABULARY)
    path = Path("fake.gguf")
    MADE.append(Engine(path, graph, ByteTokenizer(), None, runner, 0.5, verify_unchanged))
    return MADE[-1]


@pytest.fixture(autouse=True)
def _engines_end_whole():
    MADE.clear()
    yield
    for engine in MADE:
        engine.check()


def test_greedy_takes_the_largest_logit_each_time():
    runner = FakeRunner()
    result = engine_on(runner).generate("ab", max_tokens=5)
    assert result.prompt_ids == (97, 98)
    again = FakeRunner()
    rows = engine_on(again).logits([*result.prompt_ids, *result.ids])
    assert result.ids == tuple(int(row.argmax()) for row in rows[1:6])
    assert runner.steps == [2, 1, 1, 1, 1]  # the last token is never run
    assert result.finish_reason == "length"
    assert result.timings.prompt_tokens == 2
    assert result.timings.tokens == 5
    assert result.labels == {"F32": ("fake",)}
    assert result.libraries == {"fake": "00"}


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16])
def test_chunks_change_nothing(chunk):
    prompt = "a prompt of some length that needs several steps"
    result = engine_on(FakeRunner(chunk=chunk)).generate(prompt, max_tokens=4, hash_logits=True)
    whole = engine_on(FakeRunner(chunk=64)).generate(prompt, max_tokens=4, hash_logits=True)
    assert (result.ids, result.logits_sha256) == (whole.ids, whole.logits_sha256)


def test_logits_of_every_position_for_any_chunk():
    ids = list(b"teacher forced")
    expected = engine_on(FakeRunner()).logits(ids)
    assert expected.shape == (len(ids), VOCABULARY)
    for chunk in (1, 4, 5):
        assert (engine_on(FakeRunner()).logits(ids, chunk=chunk) == expected).all()


def test_the_stop_token_ends_the_text_and_stands_in_the_ids():
    result = engine_on(FakeRunner(script=writing("hello", 1))).generate("x", max_tokens=20)
    assert result.text == "hello"
    assert result.ids == (*b"hello", STOP)
    assert result.finish_reason == "stop"


def test_a_stop_string_across_tokens_is_not_emitted():
    engine = engine_on(FakeRunner(script=writing("one two three", 1)))
    stream = engine.stream("x", max_tokens=20, stop=["o t", "zzz"])
    text = "".join(piece.text for piece in stream)
    assert text == "one tw"
    assert stream.generation.text == text
    assert stream.generation.finish_reason == "stop"
    assert bytes(stream.generation.ids) == b"one two t"


def test_one_stop_string_may_stand_alone():
    engine = engine_on(FakeRunner(script=writing("one two", 1)))
    assert engine.generate("x", max_tokens=20, stop="tw").text == "one "


def test_ids_may_be_numpys():
    result = engine_on(FakeRunner()).generate(np.array([97, 98]), max_tokens=1)
    assert [type(token) for token in result.prompt_ids] == [int, int]
    with pytest.raises(TypeError):
        engine_on(FakeRunner()).generate([97.5], max_tokens=1)


def test_text_held_back_for_a_stop_comes_out_at_the_end():
    result = engine_on(FakeRunner(script=writing("abc", 1))).generate(
        "x", max_tokens=20, stop=["cd"]
    )
    assert result.text == "abc"


def test_half_a_code_point_is_never_emitted():
    engine = engine_on(FakeRunner(script=writing("aé€😀", 1)))
    pieces = [piece.text for piece in engine.stream("x", max_tokens=20)]
    assert "".join(pieces) == "aé€😀"
    assert all("�" not in piece for piece in pieces)
    cut = engine.generate("x", max_tokens=2)
    assert cut.text == "a�"


def test_the_chain_of_hashes():
    runner = FakeRunner()
    result = engine_on(runner).generate("ab", max_tokens=3, hash_logits=True)
    rows = engine_on(FakeRunner()).logits([*result.prompt_ids, *result.ids])[1:4]
    state = bytes(32)
    for row in rows:
        state = hashlib.sha256(state + row.astype("<f4").tobytes()).digest()
    assert result.logits_sha256 == state.hex()
    assert engine_on(FakeRunner()).generate("ab", max_tokens=3).logits_sha256 is None


def test_a_seed_replays():
    sampling = Sampling(temperature=1.0, seed=42)
    first, second = (
        engine_on(FakeRunner()).generate("ab", max_tokens=30, sampling=sampling) for _ in "12"
    )
    other = engine_on(FakeRunner()).generate(
        "ab", max_tokens=30, sampling=Sampling(temperature=1.0, seed=43)
    )
    assert first.ids == second.ids != other.ids
    assert first.seed == 42
    assert engine_on(FakeRunner()).generate("ab", max_tokens=1).seed is None


def test_limits_are_checked_before_work():
    runner = FakeRunner(context=16)
    engine = engine_on(runner)
    with pytest.raises(LimitError, match="length 17 does not fit a context of 16"):
        engine.generate("x" * 17)
    with pytest.raises(LimitError, match="Ask for at most 7 or"):
        engine.generate("x" * 10, max_tokens=8)
    assert runner.steps == []
    assert len(engine.generate("x" * 10, max_tokens=7).ids) == 7
    assert len(engine_on(FakeRunner(context=16)).generate("x" * 10).ids) == 7
    assert len(engine_on(FakeRunner(context=16)).generate("x" * 16).ids) == 1
    assert engine.generate("x", max_tokens=0).ids == ()


@pytest.mark.parametrize(
    ("prompt", "options", "word"),
    [
        ("", {}, "no tokens"),
        ([], {}, "no tokens"),
        ([VOCABULARY], {}, f"Token id {VOCABULARY} is not"),
        ([-1], {}, "Token id -1 is not"),
        ([True], {}, "True or False"),
        (b"x", {}, "The prompt is bytes"),
        ("x", {"max_tokens": -1}, "max_tokens is -1"),
        ("x", {"raw": False}, "no chat template"),
        ("x", {"system": "be brief"}, "needs the chat template"),
    ],
)
def test_requests_that_make_no_sense(prompt, options, word):
    with pytest.raises(UsageError, match=word):
        engine_on(FakeRunner()).generate(prompt, **options)


def test_cancelling_ends_with_a_record():
    runner = FakeRunner(script=writing("a long answer", 1))
    engine = engine_on(runner)
    stream = engine.stream("x", max_tokens=13)
    assert next(stream).text == "a"
    engine.cancel()
    assert [piece.text for piece in stream] == []
    assert stream.generation.finish_reason == "cancelled"
    assert stream.generation.text == "a"
    assert engine.generate("x", max_tokens=3).text == "a l"


def test_cancelling_during_a_step_stops_that_step():
    runner = FakeRunner(script=writing("abc", 1))
    engine = engine_on(runner)
    runner.on_step = engine.cancel
    result = engine.generate("x", max_tokens=3)
    assert (result.finish_reason, result.ids) == ("cancelled", ())
    runner.on_step = lambda: None
    assert engine.generate("x", max_tokens=3).text == "abc"


def test_cancelling_an_idle_engine_does_nothing():
    engine = engine_on(FakeRunner())
    engine.cancel()
    assert len(engine.generate("x", max_tokens=3).ids) == 3


def test_one_stream_at_a_time():
    engine = engine_on(FakeRunner(script=writing("abc", 1)))
    first = engine.stream("x", max_tokens=3)
    next(first)
    with pytest.raises(UsageError, match="already generating"):
        engine.generate("y", max_tokens=1)
    first.close()
    assert engine.generate("x", max_tokens=3).text == "abc"
    engine.stream("never started", max_tokens=1)
    assert engine.generate("x", max_tokens=3).text == "abc"


def test_closing_closes_runner_and_template():
    runner, template = FakeRunner(), ChatTemplate("{{ messages[0].content }}", {})
    engine = Engine(
        Path("fake.gguf"),
        SimpleNamespace(vocabulary=VOCABULARY),
        ByteTokenizer(),
        template,
        runner,
        0.5,
        lambda: None,
    )
    with engine:
        assert engine.generate("ab", max_tokens=1, raw=False).prompt_ids == (97, 98)
        process = template.sandbox._process
        assert process.poll() is None
    assert runner.closed
    assert process.poll() is not None


def test_logits_need_a_chunk_that_fits():
    with pytest.raises(UsageError, match="chunk is 17"):
        engine_on(FakeRunner()).logits([1, 2], chunk=17)
    assert engine_on(FakeRunner()).logits([7]).dtype == np.float32


class File:
    """Says that it changed from the given look on."""

    def __init__(self, looks):
        self.looks = looks

    def verify_unchanged(self):
        self.looks -= 1
        if self.looks < 0:
            raise FormatError("It has changed.", "Load it again.")


def test_a_file_that_changed_is_not_run():
    runner = FakeRunner()
    engine = engine_on(runner, File(0).verify_unchanged)
    for ask in (lambda: engine.generate("ab", max_tokens=2), lambda: engine.logits([1, 2])):
        with pytest.raises(FormatError, match="has changed"):
            ask()
    assert runner.steps == []


def test_what_was_made_while_the_file_changed_is_no_record():
    engine = engine_on(FakeRunner(), File(1).verify_unchanged)
    stream = engine.stream("ab", max_tokens=2)
    with pytest.raises(FormatError, match="has changed"):
        list(stream)
    assert stream.generation is None
    with pytest.raises(FormatError, match="has changed"):
        engine_on(FakeRunner(), File(1).verify_unchanged).logits([1, 2])


def test_each_turn_looks_twice():
    file = File(4)
    engine = engine_on(FakeRunner(), file.verify_unchanged)
    engine.generate("ab", max_tokens=2)
    engine.generate("cd", max_tokens=2)
    assert file.looks == 0
