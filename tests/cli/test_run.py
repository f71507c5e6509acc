"""`muser run` on an engine that only pretends: what is asked of it and what is shown."""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from outcome import Command

import muser
from muser.cli import progress, run
from muser.cli.console import last_words
from muser.cli.sampling_flags import SamplingFlags
from muser.cli.screen import facts
from muser.engine import Generation, Piece, Sampling, Timings
from muser.errors import ArithmeticFault

LABELS: Mapping[str, tuple[str, ...]] = MappingProxyType({"Q4_1": ("project[isa=c]",)})


class PretendStream:
    def __init__(self, engine: "PretendEngine", asked: dict[str, Any]) -> None:
        room = 1000 if asked["max_tokens"] is None else asked["max_tokens"]
        self.request = SimpleNamespace(max_tokens=room)
        self.generation: Generation | None = None
        self._pieces = self._made(engine, asked)

    def __iter__(self) -> "PretendStream":
        return self

    def __next__(self) -> Piece:
        return next(self._pieces)

    def _made(self, engine: "PretendEngine", asked: dict[str, Any]) -> Iterator[Piece]:
        for number, text in enumerate(engine.texts):
            if text == "<fault>":
                raise ArithmeticFault("Layer 3 left the finite numbers.", "Check the file.")
            if text == "<wait>":
                engine.waiting.set()
                engine.cancelled.wait(60)
                break
            yield Piece(text, number)
        self.generation = Generation(
            prompt_ids=(7, 8),
            ids=(1, 2, 3),
            text="".join(text for text in engine.texts if text != "<wait>") + engine.rest,
            finish_reason="cancelled" if engine.cancelled.is_set() else "stop",
            seed=5,
            timings=Timings(0.5, 0.25, 0.5, 2, 3),
            labels=LABELS,
            libraries=MappingProxyType({"cpu": "ab" * 32}),
            logits_sha256="cd" * 32 if asked["hash_logits"] else None,
        )


class PretendEngine:
    def __init__(self, texts: tuple[str, ...] = ("Par", "", "is"), rest: str = "") -> None:
        self.texts = texts
        self.rest = rest
        self.template: object | None = object()
        self.loaded: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.cancelled = threading.Event()
        self.waiting = threading.Event()

    def __enter__(self) -> "PretendEngine":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def load(self, path: Path, **options: Any) -> "PretendEngine":
        self.loaded = {"path": path, **options}
        return self

    def stream(self, prompt: str, **asked: Any) -> PretendStream:
        self.asked = {"prompt": prompt, **asked}
        return PretendStream(self, asked)

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> PretendEngine:
    pretend = PretendEngine()
    monkeypatch.setattr(muser, "load", pretend.load, raising=False)
    monkeypatch.setattr(run, "obtained", lambda model, **_: Path(model or "default"))
    return pretend


def test_text_streams_to_the_end_with_a_newline(command: Command, engine: PretendEngine) -> None:
    outcome = command("run", "The capital of France is")
    assert (outcome.status, outcome.out, outcome.err) == (0, "Paris\n", "")
    assert engine.loaded == {
        "path": Path("default"),
        "device": "cpu",
        "threads": None,
        "context": None,
        "expects_chat": True,
        "last_words": last_words,
    }
    assert engine.asked == {
        "prompt": "The capital of France is",
        "max_tokens": run.DEFAULT_TOKENS,
        "sampling": Sampling(),
        "stop": (),
        "system": None,
        "raw": False,
        "hash_logits": False,
    }


def test_every_flag_arrives(command: Command, engine: PretendEngine) -> None:
    flags = (
        "run --model m.gguf -n 9 --temperature 0.5 --top-k 3 --top-p 0.8 --min-p 0.1 --seed 11 "
        "--ctx-size 99 --threads 2 --device cpu --system Be. --stop a --stop b --json "
        "--hash-logits --repeat-penalty 1.5 -- -x"
    )
    assert command(*flags.split()).status == 0
    assert engine.loaded == {
        "path": Path("m.gguf"),
        "device": "cpu",
        "threads": 2,
        "context": 99,
        "expects_chat": True,
        "last_words": last_words,
    }
    wanted = Sampling(temperature=0.5, top_k=3, top_p=0.8, min_p=0.1, seed=11, repeat_penalty=1.5)
    assert engine.asked == {
        "prompt": "-x",
        "max_tokens": 9,
        "sampling": wanted,
        "stop": ("a", "b"),
        "system": "Be.",
        "raw": False,
        "hash_logits": True,
    }


def test_raw_is_asked_for_or_the_model_has_no_template(
    command: Command, engine: PretendEngine
) -> None:
    command("run", "--raw", "x")
    assert engine.asked["raw"] is True
    engine.template = None
    command("run", "x")
    assert engine.asked["raw"] is True


def test_a_system_message_needs_the_template(command: Command, engine: PretendEngine) -> None:
    outcome = command("run", "--raw", "x", "--system", "y")
    assert outcome.status == 2
    assert outcome.err.splitlines()[1] == "Leave out --system or --raw."
    assert engine.loaded == {}
    engine.template = None
    outcome = command("run", "x", "--system", "y")
    assert outcome.status == 2
    assert outcome.err == (
        "error: This model has no chat template, so it takes no system message.\n"
        "Leave out --system.\n"
    )
    assert engine.asked == {}


def test_short_flags_are_those_of_llama_cli(command: Command, engine: PretendEngine) -> None:
    flags = "run -m m.gguf -c 99 -t 2 --temp 0.5 -s 11 -n 9 x"
    assert command(*flags.split()).status == 0
    assert engine.loaded == {
        "path": Path("m.gguf"),
        "device": "cpu",
        "threads": 2,
        "context": 99,
        "expects_chat": True,
        "last_words": last_words,
    }
    assert engine.asked["sampling"] == Sampling(temperature=0.5, seed=11)


@pytest.mark.parametrize(
    "arguments",
    [("-",), ("-f", "-"), ("--file=-",), ("--raw", "-"), ("-n", "3", "-", "--raw"), ("--", "-")],
)
def test_a_hyphen_is_standard_input(
    command: Command, engine: PretendEngine, arguments: tuple[str, ...]
) -> None:
    assert command("run", *arguments, stdin=b"piped\n").status == 0
    assert engine.asked["prompt"] == "piped"


def test_a_hyphen_is_a_hyphen_elsewhere(command: Command, engine: PretendEngine) -> None:
    assert command("run", "--stop", "-", "--system", "-", "-f", "-", stdin=b"-\n").status == 0
    assert (engine.asked["stop"], engine.asked["system"]) == (("-",), "-")
    assert engine.asked["prompt"] == "-"


def test_json_is_one_record(command: Command, engine: PretendEngine) -> None:
    outcome = command("run", "--json", "x")
    assert outcome.status == 0
    assert outcome.out.count("\n") == 1
    assert json.loads(outcome.out) == {
        "prompt_ids": [7, 8],
        "ids": [1, 2, 3],
        "text": "Paris",
        "finish_reason": "stop",
        "seed": 5,
        "timings": {
            "load_s": 0.5,
            "prefill_s": 0.25,
            "decode_s": 0.5,
            "prompt_tokens": 2,
            "tokens": 3,
        },
        "labels": {"Q4_1": ["project[isa=c]"]},
        "libraries": {"cpu": "ab" * 32},
    }
    hashed = json.loads(command("run", "--json", "--hash-logits", "x").out)
    assert hashed["logits_sha256"] == "cd" * 32


def test_what_the_engine_warns_of_is_said_and_recorded(
    command: Command, engine: PretendEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: Path, **options: Any) -> PretendEngine:
        log = logging.getLogger("muser.kernels")
        log.info("Compiling %s.", "it")
        log.warning("%s cannot be written.", "/home")
        return engine

    monkeypatch.setattr(muser, "load", load)
    outcome = command("run", "--json", "x")
    assert outcome.err == "Compiling it.\n/home cannot be written.\n"
    assert json.loads(outcome.out)["warnings"] == ["/home cannot be written."]


def test_facts_go_to_stderr(command: Command, engine: PretendEngine) -> None:
    outcome = command("run", "--verbose", "x")
    assert outcome.out == "Paris\n"
    assert outcome.err.splitlines() == [
        "loaded    in 0.50 s",
        "prompt    2 tokens in 0.25 s, 8.0 tok/s",
        "answer    3 tokens, all but the first in 0.50 s, 4.0 tok/s, then stop; seed 5",
        "Q4_1      project[isa=c]",
        f"library   cpu {'ab' * 32}",
    ]


def test_one_token_is_said_as_one() -> None:
    lines = list(facts(Generation((7,), (1,), "", "stop", None, Timings(0, 1, 0, 1, 1), {}, {})))
    assert lines[1:] == ["prompt    1 token in 1.00 s, 1.0 tok/s", "answer    1 token, then stop"]


def test_a_terminal_gets_pictures_of_control_characters(
    command: Command, monkeypatch: pytest.MonkeyPatch, engine: PretendEngine
) -> None:
    engine.texts = ("a\tb\x1b[2J", "\x9b\n")
    assert command("run", "hi").out == "a\tb\x1b[2J\x9b\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert command("run", "hi").out == "a\tb␛[2J\ufffd\n"


@pytest.mark.parametrize("flag", ["--stop", "--system"])
def test_a_text_flag_that_is_not_utf8(command: Command, engine: PretendEngine, flag: str) -> None:
    outcome = command("run", "hi", flag, os.fsdecode(b"ab\xff"))
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {flag} is not UTF-8 at byte 2.\n")


def test_a_hash_needs_a_place(command: Command, engine: PretendEngine) -> None:
    outcome = command("run", "--hash-logits", "x")
    assert outcome.status == 2
    assert engine.loaded == {}


def test_parameters_are_checked_before_anything_is_fetched(
    command: Command, engine: PretendEngine
) -> None:
    outcome = command("run", "--top-p", "2", "x")
    assert outcome.status == 2
    assert outcome.err.startswith("error: --top-p cannot be 2.0.")
    assert engine.loaded == {}


def test_the_prompt_may_come_from_a_file_or_a_pipe(
    command: Command, engine: PretendEngine, tmp_path: Path
) -> None:
    (tmp_path / "prompt").write_text("filed\n")
    command("run", "-f", str(tmp_path / "prompt"))
    assert engine.asked["prompt"] == "filed"
    command("run", stdin=b"piped\n")
    assert engine.asked["prompt"] == "piped"


@pytest.mark.parametrize("flag", [(), ("--json",)])
def test_an_interrupt_shows_what_was_there(
    command: Command, engine: PretendEngine, flag: tuple[str, ...]
) -> None:
    engine.texts, engine.rest = ("Par", "is", "<wait>"), "!"

    def press() -> None:
        engine.waiting.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    outcome = command("run", *flag, "x")
    presser.join()
    assert outcome.status == 130
    assert outcome.err == ""
    if flag:
        made = json.loads(outcome.out)
        assert (made["text"], made["finish_reason"]) == ("Paris!", "cancelled")
    else:
        assert outcome.out == "Paris!\n"


@pytest.mark.parametrize(("flags", "shown"), [((), "Par\n"), (("--json",), "")])
def test_a_fault_ends_the_text_and_gives_no_record(
    command: Command, engine: PretendEngine, flags: tuple[str, ...], shown: str
) -> None:
    engine.texts = ("Par", "<fault>")
    outcome = command("run", *flags, "x")
    assert (outcome.status, outcome.out) == (6, shown)
    assert outcome.err == "error: Layer 3 left the finite numbers.\nCheck the file.\n"


def test_sampling_flags_are_those_of_the_engine() -> None:
    assert SamplingFlags().sampling() == Sampling()
    left_out = {"logit_bias", "order", "dry_breakers"}
    assert set(SamplingFlags.__dataclass_fields__) == {f.name for f in fields(Sampling)} - left_out


def test_no_model_is_said_before_it_is_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MUSER_HOME", str(tmp_path))

    def fetched(entry: Any, watch: Any) -> Path:
        watch.say(f"Fetching {entry.name}.")
        for done in (0, 10, 30, 60, 100):
            watch.advance(done * 1_000_000, 100_000_000)
        return Path("there")

    monkeypatch.setattr("muser.weights.fetch.fetch", fetched)
    assert progress.obtained(None) == Path("there")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "No model is on this machine yet.",
        "Fetching smollm2-135m.",
        "30 of 100 MB",
        "60 of 100 MB",
        "100 of 100 MB",
    ]
