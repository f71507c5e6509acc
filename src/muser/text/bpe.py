"""Byte-level BPE by the `tokenizers` library, built from a file's token list and merges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Regex
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Chain

from muser.errors import FormatError, ModelError, UsageError
from muser.text.bytemap import CHAR_OF
from muser.text.pretokenizers import PreTokenizer
from muser.text.strings import are_texts, joined
from muser.text.vocabulary import TOKENS_KEY

MERGES_KEY = "tokenizer.ggml.merges"


@dataclass(frozen=True, slots=True)
class Encoder:
    """Text to ids, without special tokens. `missing`: bytes for which there is no token."""

    library: Library
    missing: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Raises UsageError for a character whose bytes the vocabulary lacks."""
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"The text holds half of a surrogate pair at character {error.start}.",
                "Decode the text as UTF-16, or remove that character.",
            ) from error
        if self.missing and not self.missing.isdisjoint(raw):
            raise self._lacking(text)
        ids: list[int] = self.library.encode(text, add_special_tokens=False).ids
        return ids

    def _lacking(self, text: str) -> UsageError:
        at = next(i for i, char in enumerate(text) if not self.missing.isdisjoint(char.encode()))
        return UsageError(
            f"This model has no token for U+{ord(text[at]):04X}, character {at} of the text.",
            "Remove that character: dropping it silently would change the prompt.",
        )


def build_encoder(texts: Sequence[str], merges: Any, rule: PreTokenizer) -> Encoder:
    """The encoder of a token list; raises FormatError for merges that do not fit it."""
    words = lines(texts)
    ids = dict(zip(words, range(len(words)), strict=True))
    if len(ids) < len(words):
        raise FormatError(
            "Two tokens of this file have the same text.",
            "Fetch the file again or convert the model again.",
        )
    library = Library(_model(ids, _pairs(merges), rule))
    steps: list[Any] = [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    library.pre_tokenizer = Chain([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])
    return Encoder(library, frozenset(byte for byte, char in CHAR_OF.items() if char not in ids))


def lines(texts: Sequence[str]) -> list[str]:
    """All strings of an array, decoded at once where none of them holds a line feed."""
    words = _decoded(joined(texts), TOKENS_KEY).split("\n")
    return words if len(words) == len(texts) else list(texts)


def _pairs(merges: Any) -> list[tuple[str, str]]:
    """`left right` strings as pairs, in order of rank; of equal pairs the first one counts."""
    if not are_texts(merges) or not len(merges):
        raise ModelError(
            f"This file has no merges ({MERGES_KEY} is missing or empty).",
            "Use a GGUF file that was converted together with its tokenizer.",
        )
    blob = np.frombuffer(joined(merges) + b"\n", np.uint8)
    ends, spaces = np.flatnonzero(blob == 0x0A), np.flatnonzero(blob == 0x20)
    if len(ends) != len(merges) or len(spaces) != len(ends) or not _alternate(spaces, ends):
        raise FormatError(
            f"{MERGES_KEY} holds an entry that is not two tokens with one space between.",
            "Fetch the file again or convert the model again.",
        )
    flat = _decoded(blob[:-1].tobytes(), MERGES_KEY).replace(" ", "\n").split("\n")
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    return pairs if len(set(pairs)) == len(pairs) else list(dict.fromkeys(pairs))


def _decoded(raw: bytes, key: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{key} holds an entry that is not UTF-8.",
            "Fetch the file again or convert the model again.",
        ) from error


def _alternate(spaces: "np.ndarray[Any, Any]", ends: "np.ndarray[Any, Any]") -> bool:
    """Whether each line holds one of the spaces, with something before and after it."""
    starts = np.concatenate(([0], ends[:-1] + 1))
    return bool(np.all((starts < spaces) & (spaces < ends - 1)))


def _model(ids: Mapping[str, int], pairs: list[tuple[str, str]], rule: PreTokenizer) -> BPE:
    try:
        return BPE(dict(ids), pairs, ignore_merges=rule.whole_words)
    except Exception as error:  # the library raises bare Exception
        raise FormatError(
            f"The merges of this file do not fit its tokens: {str(error).splitlines()[0]}.",
            "Fetch the file again or convert the model again.",
        ) from error
