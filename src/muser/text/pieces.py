"""SentencePiece's BPE as GGUF files carry it (`tokenizer.ggml.model` = `llama`).

Characters merge pairwise: of all neighbours whose joined text is a token, those of the highest
score first, of equal scores the leftmost. A space is `▁` (U+2581); what stays no token becomes one
byte token per byte. The order of everything is llama.cpp's; see `encode` for the one difference.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np

from muser.errors import FormatError, UsageError
from muser.text.ending import ENDING_NAMES
from muser.text.strings import Lines, decoded, read_lines, utf8
from muser.text.vocabulary import TOKENS_KEY, TokenKind, Vocabulary

SCORES_KEY = "tokenizer.ggml.scores"
PREFIX_KEY = "tokenizer.ggml.add_space_prefix"
SPACE = "\u2581"

_TAKEN = "\ud800"  # stands where a name was found: no text and no name holds a lone surrogate
_STEM = 4  # characters of a name looked for before the name itself; most are absent at once
_MOST_CUTS = 1000  # characters that a pattern may list; beyond, a text is merged in one piece


@dataclass(frozen=True, slots=True)
class PieceRule:
    """What the file says beside its tokens: a space before a text and after a special token."""

    space_prefix: bool
    adds_bos: bool = True


@dataclass(frozen=True)
class PieceEncoder:
    """Text to ids. `ids` maps UTF-8 to ids, `ranks[id]` is the negated score: lowest first."""

    vocabulary: Vocabulary
    rule: PieceRule
    ids: Mapping[bytes, int]
    ranks: Sequence[float]
    controls: frozenset[int]
    cuts: re.Pattern[str] | None

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Names of user-defined tokens become them always, other special names if `special`.

        llama.cpp would also merge characters into a control token; here text never becomes one.
        Raises UsageError for a character without tokens for its bytes.
        """
        utf8(text)
        ids: list[int] = []
        after_special = True
        for part in _partition(text, self._names[special]):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
                continue
            prefix = SPACE if after_special and self.rule.space_prefix else ""
            ids += self._merged(prefix + part.replace(" ", SPACE), text)
            after_special = False
        return ids

    def _merged(self, part: str, text: str) -> list[int]:
        """Ids of a part, merged between the places that no token spans; words repeat."""
        ids: list[int] = []
        seen: dict[str, list[int]] = {}
        for word in self.cuts.split(part) if self.cuts else (part,):
            found = seen.get(word)
            if found is None:
                found = seen[word] = self._word(word, text)
            ids += found
        return ids

    def _word(self, word: str, text: str) -> list[int]:
        ids: list[int] = []
        for piece in merge(word.encode(), self.ids, self.ranks):
            token = self.ids.get(piece)
            if token is None:
                ids += self._bytes(piece, text)
            else:
                ids.append(token)
        return ids

    def _bytes(self, piece: bytes, text: str) -> list[int]:
        found = [self._byte_ids[byte] for byte in piece]
        ids = [token for token in found if token is not None]
        if len(ids) < len(found):
            char = piece.decode()
            at = max(0, text.find(" " if char == SPACE else char))
            raise UsageError(
                f"This model has no token for U+{ord(text[at]):04X}, character {at} of the text.",
                "Remove that character: dropping it silently would change the prompt.",
            )
        return ids

    @cached_property
    def _byte_ids(self) -> tuple[int | None, ...]:
        """Each byte's token: by its name, else by the character that it is."""
        named = (self.ids.get(b"<0x%02X>" % byte) for byte in range(256))
        return tuple(
            self.ids.get(bytes([byte])) if token is None else token
            for byte, token in enumerate(named)
        )

    @cached_property
    def _names(self) -> tuple["_Names", "_Names"]:
        """The names that are found in plain text, and those found when special ones are read."""
        known, kinds = self.vocabulary.specials, self.vocabulary.kinds
        plain = {
            name: token
            for name, token in known.items()
            if kinds[token] == TokenKind.USER_DEFINED and token not in self.controls
        }
        kinds_of = np.frombuffer(kinds, np.uint8)
        unknown = np.flatnonzero(kinds_of == TokenKind.UNKNOWN).tolist()
        texts = self.vocabulary.texts
        return _Names(plain), _Names({**known, **{texts[token]: token for token in unknown}})


def unspaced(text: str) -> bytes:
    """The bytes that the text of a normal token stands for."""
    return text.replace(SPACE, " ").encode("utf-8")


def build_pieces(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, rule: PieceRule
) -> PieceEncoder:
    """The encoder of a token list; raises FormatError for scores that do not fit it."""
    lines = read_lines(vocabulary.texts, TOKENS_KEY)
    decoded(lines.raw, TOKENS_KEY)  # UTF-8 or an error
    words = lines.split()
    controls = _controls(vocabulary)
    ids = dict(zip(words, range(len(words)), strict=True))
    if len(ids) < len(words):
        raise FormatError(
            "Two tokens of this file have the same text.",
            "Fetch the file again or convert the model again.",
        )
    for token in controls:
        del ids[words[token]]
    ranks = _read_ranks(metadata.get(SCORES_KEY), len(words))
    return PieceEncoder(vocabulary, rule, ids, ranks, controls, _find_cuts(lines))


def _controls(vocabulary: Vocabulary) -> frozenset[int]:
    """Control tokens, and the user-defined ones that llama.cpp takes for such by their names."""
    kinds = np.frombuffer(vocabulary.kinds, np.uint8)
    named = (vocabulary.specials.get(name) for name in ENDING_NAMES)
    of_kind = np.flatnonzero(kinds == TokenKind.CONTROL).tolist()
    return frozenset(of_kind) | {token for token in named if token is not None}


def _read_ranks(scores: Any, count: int) -> list[float]:
    if scores is None:
        return [0.0] * count
    fits = isinstance(scores, np.ndarray) and scores.shape == (count,)
    if not fits or scores.dtype.kind not in "fi" or not np.isfinite(scores).all():
        raise FormatError(
            f"{SCORES_KEY} does not hold one finite number for each of the {count} tokens.",
            "Fetch the file again or convert the model again.",
        )
    ranks: list[float] = (-scores.astype(np.float32)).tolist()
    return ranks


def _find_cuts(lines: Lines) -> re.Pattern[str] | None:
    """Matches before each `▁` that no token continues from the character before it.

    Where it matches, no merge can pass, so that the parts are merged one by one.
    """
    data = np.frombuffer(bytes([lines.separator]) + lines.raw, np.uint8)
    first, second, third = SPACE.encode()
    spaces = (data[:-2] == first) & (data[1:-1] == second) & (data[2:] == third)
    inside = np.flatnonzero(spaces[1:] & (data[:-3] != lines.separator))  # byte before each
    if len(inside) > _MOST_CUTS:
        return None
    before = (data[max(0, at - 3) : at + 1].tobytes() for at in inside.tolist())
    held = sorted({tail.decode("utf-8", "ignore")[-1:] for tail in before})
    behind = f"(?<![{''.join(map(re.escape, held))}])" if held else ""
    return re.compile(f"{behind}(?={SPACE})")


def merge(word: bytes, ids: Mapping[bytes, int], ranks: Sequence[float]) -> Iterator[bytes]:
    """The pieces of a word, in order; a piece of one character need not be a token.

    A heap holds the merges that are possible now, and ones that no longer are: those are known by
    an end that moved. `word` is UTF-8, places in it are bytes.
    """
    size = len(word)
    bounds = [at for at in range(size) if word[at] & 0xC0 != 0x80] + [size]
    ends = dict(pairwise(bounds))  # of the piece that begins here; 0: merged into one before
    before = {end: start for start, end in ends.items()}  # where the piece that ends here begins
    heap: list[tuple[float, int, int, int]] = []

    def offer(left: int, middle: int, right: int) -> None:
        token = ids.get(word[left:right])
        if token is not None:
            heappush(heap, (ranks[token], left, middle, right))

    for left, middle in pairwise(bounds[:-1]):
        offer(left, middle, ends[middle])
    while heap:
        _, left, middle, right = heappop(heap)
        if ends[left] != middle or ends[middle] != right:
            continue
        ends[left], ends[middle], before[right] = right, 0, left
        if left:
            offer(before[left], left, right)
        if right < size:
            offer(left, right, ends[right])
    at = 0
    while at < size:
        yield word[at : ends[at]]
        at = ends[at]


class _Names:
    """Names of special tokens, found in a text the longest first, as llama.cpp does."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self._stems: dict[str, list[tuple[int, int, str]]] = {}
        for name, token in names.items():
            if name:
                entry = (-len(name.encode()), token, name)
                self._stems.setdefault(name[:_STEM], []).append(entry)

    def found(self, text: str) -> list[tuple[int, int, int]]:
        """Start, end and token of each, by start."""
        taken: list[tuple[int, int, int]] = []
        near = (group for stem, group in self._stems.items() if stem in text)
        for _, token, name in sorted(entry for group in near for entry in group):
            at = text.find(name)
            if at < 0:
                continue
            while at >= 0:
                taken.append((at, at + len(name), token))
                at = text.find(name, at + len(name))
            text = text.replace(name, _TAKEN * len(name))
        return sorted(taken)


def _partition(text: str, names: _Names) -> Iterator[str | int]:
    """The text's parts and the special tokens between them, in order; no part is empty."""
    done = 0
    for start, end, token in names.found(text):
        if done < start:
            yield text[done:start]
        yield token
        done = end
    if done < len(text):
        yield text[done:]
