"""Byte-level BPE from a file's token list and merges; the `tokenizers` library does the work."""

import re
from collections.abc import Callable, Mapping
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
from muser.text.short import MOST, ShortEncoder, build_short, same_text
from muser.text.strings import are_texts, decoded, joined, read_lines, utf8
from muser.text.vocabulary import TOKENS_KEY, Vocabulary

MERGES_KEY = "tokenizer.ggml.merges"


class BpeEncoder:
    """Text to ids: short texts straight from the file's lists, more of them by the library.

    `specials`: special tokens by name. Raises ModelError and FormatError for bad merges.
    """

    def __init__(
        self, metadata: Mapping[str, Any], vocabulary: Vocabulary, rule: PreTokenizer
    ) -> None:
        self.specials = vocabulary.specials
        self._vocabulary = vocabulary
        self._merges = _read_merges(metadata.get(MERGES_KEY))
        self._rule = rule
        steps: list[Any] = [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
        self._cutter = Chain([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])
        self._done = 0  # characters

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Names of special tokens become them if `special`.

        Raises UsageError for a character whose bytes the vocabulary lacks, FormatError for tokens
        and merges that do not fit together.
        """
        raw = utf8(text)
        self._done += len(text)
        encode = self._by_library if self._done > MOST else self._by_lists
        pattern = self._special_pattern if special else None
        if pattern is None:
            return encode(text, raw)
        ids: list[int] = []
        # One capture group: every second part is a special token, the others are between them.
        for place, part in enumerate(pattern.split(text)):
            if place % 2:
                ids.append(self._special(part))
            elif part:
                ids += encode(part, part.encode())
        return ids

    def _special(self, name: str) -> int:
        """The library's tables hold each text once; without them this one is looked for."""
        if self._done <= MOST:
            self._short.id_of(name)
        return self.specials[name]

    def _by_lists(self, text: str, raw: bytes) -> list[int]:
        short = self._short
        if any(map(short.lacks, set(raw))):
            raise self._lacking(text, short.lacks)
        ids = short.encode(text)
        return self._by_library(text, raw) if ids is None else ids

    def _by_library(self, text: str, raw: bytes) -> list[int]:
        library, missing = self._library
        if missing and not missing.isdisjoint(raw):
            raise self._lacking(text, missing.__contains__)
        ids: list[int] = library.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _short(self) -> ShortEncoder:
        return build_short(self._vocabulary, self._merges, self._cutter, self._rule.whole_words)

    @cached_property
    def _library(self) -> tuple[Library, frozenset[int]]:
        """The library with all tokens and merges, and the bytes for which there is no token."""
        raw, separator = read_lines(self._vocabulary.texts, TOKENS_KEY)
        words = decoded(raw, TOKENS_KEY).split(chr(separator))
        ids = dict(zip(words, range(len(words)), strict=True))
        if len(ids) < len(words):
            raise same_text()
        library = Library(_model(ids, _pairs(self._merges), self._rule))
        library.pre_tokenizer = self._cutter
        return library, frozenset(byte for byte, char in CHAR_OF.items() if char not in ids)

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        """Finds the earliest special token, of those that start at one place the longest."""
        names = sorted(filter(None, self.specials), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})") if names else None

    def _lacking(self, text: str, lacks: Callable[[int], bool]) -> UsageError:
        at = next(i for i, char in enumerate(text) if any(map(lacks, char.encode())))
        return UsageError(
            f"This model has no token for U+{ord(text[at]):04X}, character {at} of the text.",
            "Remove that character: dropping it silently would change the prompt.",
        )


def _read_merges(merges: Any) -> str:
    """`left right` a line, in order of rank."""
    if not are_texts(merges) or not len(merges):
        raise ModelError(
            f"This file has no merges ({MERGES_KEY} is missing or empty).",
            "Use a GGUF file that was converted together with its tokenizer.",
        )
    raw = joined(merges)
    blob = np.frombuffer(raw + b"\n", np.uint8)
    ends, spaces = np.flatnonzero(blob == 0x0A), np.flatnonzero(blob == 0x20)
    if len(ends) != len(merges) or len(spaces) != len(ends) or not _alternate(spaces, ends):
        raise FormatError(
            f"{MERGES_KEY} holds an entry that is not two tokens with one space between.",
            "Fetch the file again or convert the model again.",
        )
    return decoded(raw, MERGES_KEY)


def _pairs(merges: str) -> list[tuple[str, str]]:
    """Lines as pairs; of equal pairs the first one counts."""
    flat = merges.replace(" ", "\n").split("\n")
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
