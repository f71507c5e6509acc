"""Small vocabularies as metadata: every byte, some merges, a few special tokens."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muser.text import CHAR_OF
from muser.text.vocabulary import TokenKind

DATA = Path(__file__).parent / "data"
CONTROLS = ("<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<|a|>", "<|a|>|>")
USER_DEFINED = ("<tool>",)


def read_merges() -> list[str]:
    """The merges that `record.py` trained across spaces and words, so that every cut shows."""
    merges: list[str] = json.loads((DATA / "merges.json").read_text("utf-8"))["merges"]
    return merges


def vocabulary_metadata(
    pre: str,
    merges: Sequence[str],
    controls: Sequence[str] = CONTROLS,
    user_defined: Sequence[str] = USER_DEFINED,
    **keys: Any,
) -> dict[str, Any]:
    """`tokenizer.*` keys: 256 bytes, what the merges make, the special tokens.

    `keys` are further `tokenizer.ggml.*` keys, for example `bos_token_id`.
    """
    made = dict.fromkeys(merge.replace(" ", "") for merge in merges)
    normal = [CHAR_OF[byte] for byte in range(256)] + list(made)
    kinds = [TokenKind.NORMAL] * len(normal)
    kinds += [TokenKind.CONTROL] * len(controls) + [TokenKind.USER_DEFINED] * len(user_defined)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*normal, *controls, *user_defined],
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": list(merges),
        **{f"tokenizer.ggml.{name}": value for name, value in keys.items()},
    }


def write_vocabulary(path: Path, metadata: dict[str, Any]) -> None:
    """A GGUF file without tensors that llama.cpp opens too."""
    from muser.formats.gguf_writer import write_gguf

    sizes = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 32,
        "attention.head_count": 1,
    }
    head = {"general.architecture": "llama", "llama.attention.layer_norm_rms_epsilon": 1e-5}
    write_gguf(path, {**head, **{f"llama.{k}": v for k, v in sizes.items()}, **metadata}, {})
