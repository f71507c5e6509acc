"""Byte-level BPE of short texts straight from a file's lists: what the library's tables give.

Building those tables takes longer than all else that a prompt of a few lines needs. Here a merge is
looked up by its text and a token by a search through the list. What a text does not use is not
looked at, so a merge that fits no token, or a token that is there twice, is an error where it is
used; the library looks at all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muser.errors import FormatError
from muser.text.bytemap import CHAR_OF
from muser.text.strings import decoded, read_lines
from muser.text.vocabulary import TOKENS_KEY, Vocabulary

MOST = 2000  # characters of all texts together: the library's tables are worth building for more
LONGEST = 64  # characters of one piece: the work grows with the square


@dataclass(frozen=True, slots=True)
class ShortEncoder:
    """`ranks`: `left right` to its place among the merges. `blob`: the bytes of all tokens, each of
    which begins at its `starts` and has its `sizes`. `whole_words`: see `PreTokenizer`.
    """

    cutter: Any
    ranks: Mapping[str, int]
    blob: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    whole_words: bool
    ids: dict[str, int | None] = field(default_factory=dict)
    pieces: dict[str, list[int]] = field(default_factory=dict)

    def encode(self, text: str) -> list[int] | None:
        """Ids of a text whose every byte has a token; None where a piece is too long."""
        cuts = [piece for piece, _ in self.cutter.pre_tokenize_str(text)]
        if any(len(piece) > LONGEST for piece in cuts):
            return None
        return [token for piece in cuts for token in self._piece(piece)]

    def id_of(self, token: str) -> int | None:
        """None for what is no token. Raises FormatError for one that is there twice."""
        if token not in self.ids:
            self.ids[token] = self._search(token)
        return self.ids[token]

    def lacks(self, byte: int) -> bool:
        return self.id_of(CHAR_OF[byte]) is None

    def _piece(self, piece: str) -> list[int]:
        if piece not in self.pieces:
            self.pieces[piece] = self._merged(piece)
        return self.pieces[piece]

    def _merged(self, piece: str) -> list[int]:
        """The merge of the lowest rank first, the leftmost of those, until none is left."""
        if self.whole_words and (whole := self.id_of(piece)) is not None:
            return [whole]
        parts, none = list(piece), len(self.ranks)
        while len(parts) > 1:
            ranks = [self.ranks.get(f"{left} {right}", none) for left, right in pairwise(parts)]
            best = min(ranks)
            if best == none:
                break
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._must(part) for part in parts]

    def _must(self, token: str) -> int:
        found = self.id_of(token)
        if found is None:
            raise FormatError(
                f"The merges of this file do not fit its tokens: {token!r} is none.",
                "Fetch the file again or convert the model again.",
            )
        return found

    def _search(self, token: str) -> int | None:
        wanted = token.encode("utf-8")
        places = np.flatnonzero(self.sizes == len(wanted))
        for offset, byte in enumerate(wanted):
            places = places[self.blob[self.starts[places] + offset] == byte]
        if len(places) > 1:
            raise same_text()
        return int(places[0]) if len(places) else None


def same_text() -> FormatError:
    return FormatError(
        "Two tokens of this file have the same text.",
        "Fetch the file again or convert the model again.",
    )


def build_short(
    vocabulary: Vocabulary, merges: str, cutter: Any, whole_words: bool
) -> ShortEncoder:
    """`merges`: a line each, of two tokens with a space between; of equal ones the first counts."""
    raw, separator = read_lines(vocabulary.texts, TOKENS_KEY)
    decoded(raw, TOKENS_KEY)
    blob = np.frombuffer(raw + bytes([separator]), np.uint8)
    ends = np.flatnonzero(blob == separator)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lines = merges.split("\n")
    ranks = dict(zip(reversed(lines), range(len(lines) - 1, -1, -1), strict=True))
    return ShortEncoder(cutter, ranks, blob, starts, ends - starts, whole_words)
