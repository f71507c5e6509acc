"""Live against llama.cpp (`xllamacpp`), and the goldens of the demo model's own vocabulary."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muser.formats import GgufFile
from muser.text import Tokenizer
from muser.text.ending import ENDING_NAMES
from muser.weights import obtain
from muser.weights.catalogue import named
from tests.text.llama_cpp import LlamaVocabulary, open_vocabulary
from tests.text.piece_vocabulary import CONTROLS, LETTERS, USER_DEFINED, piece_metadata
from tests.text.record import golden_metadata
from tests.text.samples import PARTS, all_texts
from tests.text.vocabularies import DATA, read_merges, vocabulary_metadata, write_vocabulary

Pair = tuple[Tokenizer, LlamaVocabulary]


def open_pair(metadata: dict[str, Any], folder: Path) -> Iterator[Pair]:
    pytest.importorskip("xllamacpp", reason="llama.cpp is asked through the xllamacpp wheel")
    path = folder / "vocabulary.gguf"
    write_vocabulary(path, metadata)
    with open_vocabulary(path) as peer:
        yield Tokenizer.from_metadata(metadata), peer


@pytest.fixture(scope="module", params=["llama4", "smollm", "gpt-2", "default"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    metadata = golden_metadata(request.param, read_merges(), True)
    yield from open_pair(metadata, tmp_path_factory.mktemp("pair"))


# Letters that Unicode 16 added are left out: the regex library does not know them yet.
texts = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=30).map("".join),
    st.text(st.characters(max_codepoint=0x1C88, exclude_categories=["Cs", "Cn"]), max_size=40),
    st.text(st.characters(codec="latin-1"), max_size=60),
)


@pytest.mark.peers
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=texts)
def test_made_up_texts_equal_llama_cpp(pair: Pair, text: str) -> None:
    ours, peer = pair
    assert ours.encode(text, bos=False) == peer.encode(text)
    assert ours.encode(text, special=True, bos=False) == peer.encode(text, special=True)


@pytest.mark.peers
def test_bytes_equal_llama_cpp(pair: Pair) -> None:
    ours, peer = pair
    assert ours.size == peer.size
    for token in range(ours.size):
        assert ours.token_bytes(token) == peer.token_bytes(token)


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "bare"])
def pieces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    metadata = piece_metadata(add_space_prefix=request.param)
    yield from open_pair(metadata, tmp_path_factory.mktemp("pieces"))


piece_texts = st.one_of(
    st.text(st.sampled_from(LETTERS), max_size=60),
    st.lists(
        st.sampled_from([*CONTROLS, *USER_DEFINED, " ", "the ", "\u2581", "é"]), max_size=20
    ).map("".join),
    st.text(max_size=40),
)


@pytest.mark.peers
@settings(
    max_examples=800, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=piece_texts)
def test_pieces_equal_llama_cpp(pieces: Pair, text: str) -> None:
    """No name of a control token here can be merged; there alone the two differ."""
    ours, peer = pieces
    for special in (False, True):
        ids = peer.encode(text, special=special)
        assert ours.encode(text, special=special, bos=False) == ids


@pytest.mark.peers
def test_samples_bytes_and_stops_of_pieces_equal_llama_cpp(pieces: Pair) -> None:
    ours, peer = pieces
    for text in all_texts():
        assert ours.encode(text, bos=False) == peer.encode(text)
    assert [ours.token_bytes(i) for i in range(ours.size)] == [
        peer.token_bytes(i) for i in range(peer.size)
    ]
    assert ours.stop_ids == peer.stop_ids()


@pytest.mark.peers
def test_goldens_are_what_llama_cpp_says_now(pair: Pair) -> None:
    ours, peer = pair
    wanted = json.loads((DATA / "goldens.json").read_text("utf-8"))["plain"][
        ours.metadata["tokenizer.ggml.pre"]
    ]
    texts = all_texts()
    assert [peer.encode(t) for t in texts if "<tool>" not in t] == [
        ids for t, ids in zip(texts, wanted, strict=True) if "<tool>" not in t
    ]


@pytest.mark.peers
@pytest.mark.parametrize(
    "left_out",
    [
        (),
        ("<|return|>", "<|calls|>"),
        ("<|return|>", "<|flush|>"),
        ("<|call|>", "<|calls|>"),
        ("<|call|>", "<|flush|>"),
    ],
)
def test_stops_equal_llama_cpp(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    """Of several fill-in-the-middle names llama.cpp takes one; so each family stands here once."""
    once = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"}
    once |= {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", *left_out}
    others = ("<|eom|>", "<|eot|>", "<|im_start|>", "<|start|>", "<s>", "<unk>", "<|pad|>")
    names = [name for name in ENDING_NAMES if name not in once]
    metadata = vocabulary_metadata(
        "llama4", ("a b",), [*names, *others], (), eos_token_id=257, eot_token_id=258
    )
    for ours, peer in open_pair(metadata, tmp_path):
        assert ours.stop_ids == peer.stop_ids()


@pytest.mark.models
def test_demo_model_goldens() -> None:
    """Recorded by `record.py --smollm2`: every sample, with and without special tokens."""
    goldens = json.loads((DATA / "goldens.json").read_text("utf-8"))["smollm2"]
    with GgufFile.open(obtain()) as file:
        made = Tokenizer.from_metadata(file.metadata)
        assert made.stop_ids == {0, 2, 4}
        for kind in ("plain", "special"):
            for text, wanted in zip(all_texts(), goldens[kind], strict=True):
                assert made.encode(text, special=kind == "special", bos=False) == wanted


@pytest.mark.models
@pytest.mark.peers
def test_gemmas_own_vocabulary_equals_llama_cpp() -> None:
    """262,144 tokens: samples, texts made of its tokens, names of its control tokens."""
    pytest.importorskip("xllamacpp", reason="llama.cpp is asked through the xllamacpp wheel")
    entry = named("gemma3-270m")
    assert entry is not None
    if not entry.is_here:
        pytest.skip(f"{entry.name} is not here")
    draw = random.Random(20261129)
    with GgufFile.open(entry.path) as file, open_vocabulary(entry.path) as peer:
        ours = Tokenizer.from_metadata(file.metadata)
        spelled = ours.vocabulary.texts
        made = [
            "".join(spelled[draw.randrange(ours.size)] for _ in range(draw.randint(1, 12)))
            for _ in range(1500)
        ]
        controls = [spelled[i] for i in range(ours.size) if ours.vocabulary.is_control(i)]
        spaced = [text.replace("\u2581", " ") for text in made]
        for text in (*all_texts(), *made, *spaced, *controls[:200]):
            for special in (False, True):
                wanted = peer.encode(text, special=special)
                assert ours.encode(text, special=special, bos=False) == wanted
        assert ours.stop_ids == peer.stop_ids()
        for token in range(0, ours.size, 7):
            assert ours.token_bytes(token) == peer.token_bytes(token)
