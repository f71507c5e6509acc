"""A small SentencePiece vocabulary: words whose merges compete, specials that overlap."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from muser.text.vocabulary import TokenKind

SPACE = "\u2581"
CONTROLS = ("<unk>", "<s>", "</s>", "<bos>", "<end_of_turn>", "<a>", "<a>>")
USER_DEFINED = ("\n", "\n\n", "\n\n\n", "  ", "<h1>", "<b>", "b><b", "é日")
_ENGLISH = "th he the in er re on an and ing hi ih hih ab ba aba bab aa aaa aaaa 99 999 bo <b '' '>"
_OTHERS = (
    "é日x 日本 本語 日本語 😀😃 e\u0301 ▁t ▁th ▁the ▁a ▁an ▁and ▁▁ ▁▁▁ ▁▁▁▁ a▁ >▁< e▁ ▁h ▁hi in▁"
)
WORDS = (*_ENGLISH.split(), *_OTHERS.split(), "\t\t", ">\n")
LETTERS = "abehinorstx<>/é日本語▁\n\t '9😀😃\u0301sgd"


def piece_metadata(
    words: Sequence[str] = WORDS, scores: Sequence[float] | None = None, **keys: Any
) -> dict[str, Any]:
    """`tokenizer.*` keys: specials, 256 bytes, letters, words; scores fall unless given."""
    first = [*CONTROLS, *USER_DEFINED]
    named = [f"<0x{byte:02X}>" for byte in range(256)]
    normal = list(dict.fromkeys([*LETTERS.replace(" ", "").replace("\n", ""), *words]))
    kinds = [TokenKind.UNKNOWN] + [TokenKind.CONTROL] * (len(CONTROLS) - 1)
    kinds += [TokenKind.USER_DEFINED] * len(USER_DEFINED) + [TokenKind.BYTE] * 256
    kinds += [TokenKind.NORMAL] * len(normal)
    made = [-float(i % 40) for i in range(len(normal))] if scores is None else list(scores)
    rest = [0.0] * (len(kinds) - len(normal))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*first, *named, *normal],
        "tokenizer.ggml.scores": np.array([*rest, *made], np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": CONTROLS.index("<bos>"),
        "tokenizer.ggml.eos_token_id": CONTROLS.index("</s>"),
        **{f"tokenizer.ggml.{name}": value for name, value in keys.items()},
    }
