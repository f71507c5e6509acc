"""The token list of a file: strings, kinds, and the bytes that each token adds to a text."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from muser.errors import FormatError, ModelError
from muser.text.bytemap import unmapped
from muser.text.strings import are_texts

TOKENS_KEY = "tokenizer.ggml.tokens"
KINDS_KEY = "tokenizer.ggml.token_type"

Spelling = Callable[[str], bytes]

_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenKind(IntEnum):
    """Values of `tokenizer.ggml.token_type` (llama.cpp, `llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """`texts[id]` as the file spells it, `kinds[id]` a `TokenKind`, one byte a token.

    `spelling` is how the texts of normal tokens stand for bytes.
    """

    texts: Sequence[str]
    kinds: bytes
    spelling: Spelling = unmapped

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], spelling: Spelling = unmapped
    ) -> "Vocabulary":
        """Raises ModelError without a token list, FormatError when the lists disagree."""
        texts = metadata.get(TOKENS_KEY)
        if not are_texts(texts) or not len(texts):
            raise ModelError(
                f"This file has no vocabulary ({TOKENS_KEY} is missing or empty).",
                "Use a GGUF file that was converted together with its tokenizer.",
            )
        return cls(texts, _read_kinds(metadata.get(KINDS_KEY), len(texts)), spelling)

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def specials(self) -> Mapping[str, int]:
        """Texts of the control and user-defined tokens, to their ids."""
        kinds = np.frombuffer(self.kinds, np.uint8)
        wanted = (kinds == TokenKind.CONTROL) | (kinds == TokenKind.USER_DEFINED)
        return {self.texts[i]: i for i in np.flatnonzero(wanted).tolist()}

    def is_control(self, token: int) -> bool:
        """Whether `token` is markup and no part of the text."""
        return self.kinds[token] == TokenKind.CONTROL

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to a text, not always whole characters; its name if it is special."""
        text, kind = self.texts[token], self.kinds[token]
        if kind == TokenKind.NORMAL:
            return self.spelling(text)
        if kind == TokenKind.UNUSED:
            return b""
        named = _BYTE_NAME.fullmatch(text) if kind == TokenKind.BYTE else None
        return bytes([int(named[1], 16)]) if named else text.encode("utf-8")


def _read_kinds(kinds: Any, count: int) -> bytes:
    if kinds is None:
        return bytes([TokenKind.NORMAL]) * count
    if not isinstance(kinds, np.ndarray | Sequence) or len(kinds) != count:
        raise FormatError(
            f"{KINDS_KEY} does not hold one number for each of the {count} tokens.",
            "Fetch the file again or convert the model again.",
        )
    values = np.asarray(kinds)
    if (
        values.ndim != 1
        or values.dtype.kind not in "iu"
        or not np.all((values >= 0) & (values < 7))
    ):
        raise FormatError(
            f"{KINDS_KEY} holds something other than kinds of tokens, 0 to 6.",
            "Fetch the file again or convert the model again.",
        )
    return values.astype(np.uint8).tobytes()
