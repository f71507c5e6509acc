"""A byte-level BPE vocabulary of any size: 256 bytes, merges of lower-case letters, specials."""

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
_NORMAL, _CONTROL = 1, 3

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
_LLAMA_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_vocabulary(architecture: str, size: int) -> dict[str, Value]:
    """The `tokenizer.*` metadata of a vocabulary of `size` tokens, specials last.

    From 100,000 tokens on, `muse-glimmer` has the 2048 specials of the released model at their
    places; below, only the seven that text needs. Raises UsageError if `size` is too small.
    """
    specials = _specials(architecture, size)
    count = size - BYTES - len(specials)
    if count < 1:
        raise UsageError(
            f"A vocabulary of {size} tokens cannot hold {BYTES} bytes, a merge and"
            f" {len(specials)} specials.",
            f"Ask for at least {BYTES + len(specials) + 1}.",
        )
    merges = list(islice(_merges(), count))
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


def _merges() -> Iterator[tuple[str, str]]:
    """Every string of letters, with or without a leading space, by length: its head, its end."""
    words: list[str] = list(_LETTERS)
    for head in chain([_SPACE], words):  # `words` grows while it is read
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
