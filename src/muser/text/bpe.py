"""Byte-level BPE by the `tokenizers` library, built from a file's token list and merges."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
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
from muser.text.strings import are_texts, decoded, joined, read_lines, utf8
from muser.text.vocabulary import TOKENS_KEY, Vocabulary

MERGES_KEY = "tokenizer.ggml.merges"


@dataclass(frozen=True)
class BpeEncoder:
    """Text to ids. `missing`: bytes for which there is no token; `specials` by name."""

    library: Library
    missing: frozenset[int]
    specials: Mapping[str, int]

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Names of special tokens become them if `special`.

        Raises UsageError for a character whose bytes the vocabulary lacks.
        """
        pattern = self._special_pattern if special else None
        if pattern is None:
            return self._plain(text)
        ids: list[int] = []
        # One capture group: every second part is a special token, the others are between them.
        for place, part in enumerate(pattern.split(text)):
            if place % 2:
                ids.append(self.specials[part])
            elif part:
                ids += self._plain(part)
        return ids

    def _plain(self, text: str) -> list[int]:
        raw = utf8(text)
        if self.missing and not self.missing.isdisjoint(raw):
            raise self._lacking(text)
        ids: list[int] = self.library.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        """Finds the earliest special token, of those that start at one place the longest."""
        names = sorted(filter(None, self.specials), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})") if names else None

    def _lacking(self, text: str) -> UsageError:
        at = next(i for i, char in enumerate(text) if not self.missing.isdisjoint(char.encode()))
        return UsageError(
            f"This model has no token for U+{ord(text[at]):04X}, character {at} of the text.",
            "Remove that character: dropping it silently would change the prompt.",
        )


def build_bpe(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, rule: PreTokenizer
) -> BpeEncoder:
    """The encoder of a token list; raises FormatError for merges that do not fit it."""
    raw, separator = read_lines(vocabulary.texts, TOKENS_KEY)
    words = decoded(raw, TOKENS_KEY).split(chr(separator))
    ids = dict(zip(words, range(len(words)), strict=True))
    if len(ids) < len(words):
        raise FormatError(
            "Two tokens of this file have the same text.",
            "Fetch the file again or convert the model again.",
        )
    library = Library(_model(ids, _pairs(metadata.get(MERGES_KEY)), rule))
    steps: list[Any] = [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    library.pre_tokenizer = Chain([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])
    missing = frozenset(byte for byte, char in CHAR_OF.items() if char not in ids)
    return BpeEncoder(library, missing, vocabulary.specials)


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
    flat = decoded(blob[:-1].tobytes(), MERGES_KEY).replace(" ", "\n").split("\n")
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    return pairs if len(set(pairs)) == len(pairs) else list(dict.fromkeys(pairs))


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
