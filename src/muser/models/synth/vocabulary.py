"""A vocabulary of any size: 256 bytes, merges of lower-case letters, specials.

Byte-level BPE has merges, SentencePiece scores that fall from token to token.
"""

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np

from muser.errors import UsageError
from muser.formats import Value
from muser.text import CHAR_OF

BYTES = 256
FULL_SPECIALS = 2048  # the count of a full-size Muse Glimmer vocabulary
_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"  # frequent ones first
_SPACE = CHAR_OF[0x20]
_PIECE_SPACE = "\u2581"
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
_LAST = -1000.0  # the score of what takes no part in merging

# Offsets of the named specials among the 2048 of the released vocabulary.
_MUSE_NAMES = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    7: "<|eom|>",
    8: "<|eot|>",
    18: "<|finetune_right_pad|>",
    22: "<|start|>",
    23: "<|message|>",
    80: "<|image_start|>",
    81: "<|image_end|>",
    82: "<|vid_start|>",
    83: "<|vid_end|>",
    87: "<|vid_frame_separator|>",
    90: "<|image|>",
    91: "<|video|>",
    92: "<|patch|>",
}
_MUSE_FEW = tuple(_MUSE_NAMES[at] for at in (0, 1, 7, 8, 18, 22, 23))
_GEMMA_NAMES = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
_GEMMA_TEXTS = ("\n", "\n\n", "  ")
_LLAMA_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_vocabulary(architecture: str, size: int) -> dict[str, Value]:
    """The `tokenizer.*` metadata of a vocabulary of `size` tokens, specials last.

    From 100,000 tokens on, `muse-glimmer` has the 2048 specials of the released model at their
    places; below, only the seven that text needs. Raises UsageError if `size` is too small.
    """
    if architecture == "gemma3":
        return _make_pieces(size)
    specials = _specials(architecture, size)
    count = _room(size, len(specials))
    merges = list(islice(_merges(_SPACE), count))
    tokens = [CHAR_OF[byte] for byte in range(BYTES)]
    tokens += [left + right for left, right in merges]
    kinds = np.full(size, _NORMAL, np.int32)
    kinds[len(tokens) :] = _CONTROL
    ids = {name: len(tokens) + at for at, name in enumerate(specials)}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama4" if architecture == "muse-glimmer" else "smollm",
        "tokenizer.ggml.tokens": tokens + specials,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        **_roles(architecture, ids),
    }


def _room(size: int, specials: int) -> int:
    """How many tokens are left for merges."""
    if size <= BYTES + specials:
        raise UsageError(
            f"A vocabulary of {size} tokens cannot hold {BYTES} bytes, a merge and"
            f" {specials} specials.",
            f"Ask for at least {BYTES + specials + 1}.",
        )
    return size - BYTES - specials


def _make_pieces(size: int) -> dict[str, Value]:
    """SentencePiece's: specials first, text that is found before merging, bytes, letters, words."""
    first = (*_GEMMA_NAMES, *_GEMMA_TEXTS)
    count = _room(size, len(first))
    letters = [_PIECE_SPACE, *_LETTERS]
    words = chain(letters, (head + end for head, end in _merges(_PIECE_SPACE)))
    kinds = np.full(size, _NORMAL, np.int32)
    kinds[: len(first)] = _CONTROL
    kinds[len(_GEMMA_NAMES) : len(first)] = _USER_DEFINED
    kinds[len(first) : len(first) + BYTES] = _BYTE
    scores = np.full(size, _LAST, np.float32)
    scores[len(first) + BYTES :] = -np.arange(count)
    named = [f"<0x{byte:02X}>" for byte in range(BYTES)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*first, *named, *islice(words, count)],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": first.index("<bos>"),
        "tokenizer.ggml.eos_token_id": first.index("<eos>"),
        "tokenizer.ggml.unknown_token_id": first.index("<unk>"),
        "tokenizer.ggml.padding_token_id": first.index("<pad>"),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _merges(space: str) -> Iterator[tuple[str, str]]:
    """Every string of letters, with or without a leading space, by length: its head, its end."""
    words: list[str] = list(_LETTERS)
    for head in chain([space], words):  # `words` grows while it is read
        for letter in _LETTERS:
            words.append(head + letter)
            yield head, letter


def _specials(architecture: str, size: int) -> list[str]:
    if architecture != "muse-glimmer":
        return list(_LLAMA_NAMES)
    if size < 100_000:
        return list(_MUSE_FEW)
    names = (f"<|reserved_special_token_{at}|>" for at in range(FULL_SPECIALS))
    return [_MUSE_NAMES.get(at, name) for at, name in enumerate(names)]


def _roles(architecture: str, ids: dict[str, int]) -> dict[str, Value]:
    if architecture == "muse-glimmer":
        return {
            "tokenizer.ggml.bos_token_id": ids["<|begin_of_text|>"],
            "tokenizer.ggml.eos_token_id": ids["<|end_of_text|>"],
            "tokenizer.ggml.eot_token_id": ids["<|eot|>"],
            "tokenizer.ggml.padding_token_id": ids["<|finetune_right_pad|>"],
            "tokenizer.ggml.add_bos_token": True,
        }
    return {
        "tokenizer.ggml.bos_token_id": ids["<|im_start|>"],
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
        "tokenizer.ggml.unknown_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.padding_token_id": ids["<|im_end|>"],
        "tokenizer.ggml.add_bos_token": False,
    }
