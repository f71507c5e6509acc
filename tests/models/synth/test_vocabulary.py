import numpy as np
import pytest

from muser.errors import UsageError
from muser.models.synth.vocabulary import make_vocabulary
from muser.text import Tokenizer

TEXTS = ("", "hello the world", "Été 1,234!\n\n\t x", "日本語 🙂", "the theatre  and\r\nthen")


PIECES_OF_THEN_THE = {  # fewer with more merges
    ("llama", 264): 7,
    ("llama", 320): 5,
    ("llama", 5000): 4,
    ("muse-glimmer", 264): 8,
    ("muse-glimmer", 320): 6,
    ("muse-glimmer", 5000): 4,
    ("gemma3", 266): 8,
    ("gemma3", 320): 7,
    ("gemma3", 5000): 4,
}


@pytest.mark.parametrize(("architecture", "size"), PIECES_OF_THEN_THE)
def test_a_tokenizer_works_on_it(architecture: str, size: int) -> None:
    tokenizer = Tokenizer.from_metadata(make_vocabulary(architecture, size))
    assert tokenizer.size == size
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, bos=False)) == text
    pieces = tokenizer.encode("then the", bos=False)
    assert len(pieces) == PIECES_OF_THEN_THE[architecture, size]


def test_merges_make_the_tokens_once_each() -> None:
    for size in (300, 202_048):
        metadata = make_vocabulary("muse-glimmer", size)
        tokens = metadata["tokenizer.ggml.tokens"]
        merges = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
        assert len(tokens) == len(set(tokens)) == size
        assert ["".join(pair) for pair in merges] == tokens[256 : 256 + len(merges)]
        known = set(tokens[:256])
        for left, right in merges:
            assert left in known
            assert right in known
            known.add(left + right)


def test_the_full_vocabulary_has_the_released_ids() -> None:
    metadata = make_vocabulary("muse-glimmer", 202_048)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert tokens[200000:200003] == [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_2|>",
    ]
    assert (tokens[200008], tokens[200092]) == ("<|eot|>", "<|patch|>")
    assert tokens[202047] == "<|reserved_special_token_2047|>"
    roles = ("bos", "eos", "eot", "padding")
    ids = [metadata[f"tokenizer.ggml.{role}_token_id"] for role in roles]
    assert ids == [200000, 200001, 200008, 200018]
    kinds = metadata["tokenizer.ggml.token_type"]
    assert isinstance(kinds, np.ndarray)
    assert np.flatnonzero(kinds == 3).tolist() == list(range(200000, 202048))


def test_pieces_stand_in_the_order_of_their_scores() -> None:
    metadata = make_vocabulary("gemma3", 2000)
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    assert len(set(tokens)) == len(scores) == 2000
    assert np.bincount(metadata["tokenizer.ggml.token_type"]).tolist() == [0, 1735, 0, 6, 3, 0, 256]
    normal = np.array(metadata["tokenizer.ggml.token_type"]) == 1
    assert np.diff(scores[normal]).max() < 0
    assert [metadata[f"tokenizer.ggml.{role}_token_id"] for role in ("bos", "eos")] == [2, 1]


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="263 tokens"):
        make_vocabulary("muse-glimmer", 263)
    assert len(make_vocabulary("muse-glimmer", 264)["tokenizer.ggml.merges"]) == 1
