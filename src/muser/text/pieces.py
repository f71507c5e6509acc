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
from muser.text.lexicon import Lexicon
from muser.text.names import Names, partition
from muser.text.strings import Table, utf8
from muser.text.vocabulary import TokenKind, Vocabulary

SCORES_KEY = "tokenizer.ggml.scores"
PREFIX_KEY = "tokenizer.ggml.add_space_prefix"
SPACE = "\u2581"

_ALWAYS = SPACE.encode() + b"<0x0123456789ABCDEF>"  # bytes of tokens for what is not in the text
_MOST_CUTS = 1000  # characters that a pattern may list; beyond, a text is merged in one piece


@dataclass(frozen=True, slots=True)
class PieceRule:
    """What the file says beside its tokens: a space before a text and after a special token."""

    space_prefix: bool
    adds_bos: bool = True


@dataclass(frozen=True)
class PieceEncoder:
    """Text to ids. `ranks[id]` is the negated score: lowest first."""

    vocabulary: Vocabulary
    rule: PieceRule
    lexicon: Lexicon
    ranks: Sequence[float]
    controls: frozenset[int]
    cuts: re.Pattern[str] | None

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Names of user-defined tokens become them always, other special names if `special`.

        llama.cpp would also merge characters into a control token; here text never becomes one.
        Raises UsageError for a character without tokens for its bytes.
        """
        known = self.lexicon.covering(utf8(text) + _ALWAYS)
        names = self._special_names if special else self._plain_names
        ids: list[int] = []
        after_special = True
        for part in partition(text, names):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
                continue
            prefix = SPACE if after_special and self.rule.space_prefix else ""
            for piece in self._pieces(prefix + part.replace(" ", SPACE), known):
                token = known.get(piece)
                ids += _bytes(piece, known, text) if token is None else (token,)
            after_special = False
        return ids

    def _pieces(self, part: str, known: Mapping[bytes, int]) -> Iterator[bytes]:
        """A part's pieces, merged between the places that no token spans; words repeat."""
        seen: dict[str, list[bytes]] = {}
        for word in self.cuts.split(part) if self.cuts else (part,):
            found = seen.get(word)
            if found is None:
                found = seen[word] = list(merge(word.encode(), known, self.ranks))
            yield from found

    @cached_property
    def _plain_names(self) -> Names:
        """What is found in plain text."""
        kinds = self.vocabulary.kinds
        return Names(
            {
                name: token
                for name, token in self.vocabulary.specials.items()
                if kinds[token] == TokenKind.USER_DEFINED and token not in self.controls
            }
        )

    @cached_property
    def _special_names(self) -> Names:
        """What is found where special names are read: those, controls and the unknown token."""
        kinds = np.frombuffer(self.vocabulary.kinds, np.uint8)
        unknown = np.flatnonzero(kinds == TokenKind.UNKNOWN).tolist()
        texts = self.vocabulary.texts
        return Names({**self.vocabulary.specials, **{texts[token]: token for token in unknown}})


def _bytes(piece: bytes, known: Mapping[bytes, int], text: str) -> list[int]:
    """A token for each byte: by its name, else by the character that it is."""
    found = [known.get(b"<0x%02X>" % byte, known.get(bytes([byte]))) for byte in piece]
    ids = [token for token in found if token is not None]
    if len(ids) == len(found):
        return ids
    char = piece.decode()
    at = max(0, text.find(" " if char == SPACE else char))
    raise UsageError(
        f"This model has no token for U+{ord(text[at]):04X}, character {at} of the text.",
        "Remove that character: dropping it silently would change the prompt.",
    )


def unspaced(text: str) -> bytes:
    """The bytes that the text of a normal token stands for."""
    return text.replace(SPACE, " ").encode("utf-8")


def build_pieces(
    metadata: Mapping[str, Any], vocabulary: Vocabulary, rule: PieceRule
) -> PieceEncoder:
    """The encoder of a token list; raises FormatError for scores that do not fit it."""
    controls = _controls(vocabulary)
    lexicon = Lexicon(vocabulary.texts, controls)
    ranks = _read_ranks(metadata.get(SCORES_KEY), len(vocabulary))
    return PieceEncoder(vocabulary, rule, lexicon, ranks, controls, _find_cuts(lexicon.table))


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
    if fits and scores.dtype.kind in "fi":
        with np.errstate(over="ignore"):
            scores = scores.astype(np.float32)
    if not fits or scores.dtype.kind != "f" or not np.isfinite(scores).all():
        raise FormatError(
            f"{SCORES_KEY} does not hold one finite number for each of the {count} tokens.",
            "Fetch the file again or convert the model again.",
        )
    ranks: list[float] = (-scores).tolist()
    return ranks


def _find_cuts(table: Table) -> re.Pattern[str] | None:
    """Matches before each `▁` that no token continues from the character before it.

    Where it matches, no merge can pass, so that the parts are merged one by one.
    """
    first, second, third = SPACE.encode()
    raw = table.raw
    spaces = (raw[:-2] == first) & (raw[1:-1] == second) & (raw[2:] == third)
    spaces[table.starts[table.starts < len(spaces)]] = False
    inside = np.flatnonzero(spaces)
    if len(inside) > _MOST_CUTS:
        return None
    before = (raw[max(0, at - 4) : at].tobytes() for at in inside.tolist())
    held = sorted({tail.decode("utf-8", "ignore")[-1:] for tail in before} - {""})
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
