"""Stages that lower the logits of tokens because of what was said before: penalties and DRY."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muser.engine.sampling.candidates import F32, I64, Candidates
from muser.engine.sampling.stages import History
from muser.errors import ArithmeticFault

Breakers = Mapping[int, Sequence[tuple[int, ...]]]

# Where base^n stops growing, so that a penalty stays a finite f32.
POWER_LIMIT = 2.0**100
PENALTY_LIMIT = 2.0**120
# Upstream's bound on the tokens that may complete a breaker after its head.
TAIL_LIMIT = 20


def last_tokens(history: History, count: int) -> History:
    """The last `count` of the history; all of it for −1."""
    if count < 0:
        return history
    return history[max(0, len(history) - count) :]


@dataclass(frozen=True)
class Penalties:
    """Once for each token seen: ÷ or × `repeat`, then − (count·frequency + presence); f32.

    `repeat` is that of Keskar et al., "CTRL", 2019: it divides what is above 0 and multiplies
    the rest.
    """

    last_n: int
    repeat: float
    presence: float
    frequency: float

    def __call__(self, given: Candidates, history: History) -> Candidates:
        counts = Counter(last_tokens(history, self.last_n))
        return lower(given, counts, self._penalised)

    def _penalised(self, logits: F32, counts: F32) -> F32:
        repeat = np.float32(self.repeat)
        repeated: F32 = np.where(logits > 0, logits / repeat, logits * repeat)
        return repeated - (counts * np.float32(self.frequency) + np.float32(self.presence))


@dataclass(frozen=True)
class Dry:
    """Lowers each token that would go on with a repetition, by multiplier·base^(length − allowed).

    P. Weidmann, "DRY", 2024 (text-generation-webui #5677). The length is of the longest suffix of
    the window that stood before that token earlier in it; it never reaches across a breaker.
    """

    multiplier: float
    base: float
    allowed_length: int
    last_n: int
    breakers: Breakers

    def __call__(self, given: Candidates, history: History) -> Candidates:
        window = list(last_tokens(history, self.last_n))[::-1]
        if len(window) <= self.allowed_length:
            return given
        reach = _reach(window, self.breakers)
        if reach < self.allowed_length:
            return given
        lengths: dict[int, float] = {}
        for back, length in enumerate(_suffix_matches(window)[1:], start=1):
            length = min(length, reach)
            token = window[back - 1]
            if length >= self.allowed_length:
                lengths[token] = max(length, lengths.get(token, 0))
        return lower(given, lengths, self._penalised)

    def _penalised(self, logits: F32, lengths: F32) -> F32:
        excess = (int(n) - self.allowed_length for n in lengths)
        penalties = [min(self.multiplier * self._power(n), PENALTY_LIMIT) for n in excess]
        return logits - np.array(penalties, dtype=np.float32)

    def _power(self, exponent: int) -> float:
        result = 1.0
        if self.base == 1.0:
            return result
        for _ in range(exponent):
            if result >= POWER_LIMIT:
                break
            result *= self.base
        return result


def lower(
    given: Candidates, seen: Mapping[int, float], act: Callable[[F32, F32], F32]
) -> Candidates:
    """Candidates with act(logits, values) in place of the logits of the tokens in `seen`.

    Raises ArithmeticFault where a logit leaves the finite numbers.
    """
    ids: I64 = np.fromiter(seen.keys(), dtype=np.int64, count=len(seen))
    values = np.fromiter(seen.values(), dtype=np.float32, count=len(seen))
    places = given.positions(ids)
    values, places = values[places >= 0], places[places >= 0]
    logits = given.logits.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        logits[places] = act(logits[places], values)
    if not np.isfinite(logits[places]).all():
        raise ArithmeticFault(
            "A penalty drives a logit out of the finite numbers.",
            "Choose values of --repeat-penalty, --presence-penalty, --frequency-penalty and "
            "--dry-multiplier nearer to their defaults.",
        )
    return given.with_logits(logits)


def _suffix_matches(window: Sequence[int]) -> list[int]:
    """z[k]: how many tokens `window` and `window[k:]` have in common from their starts on.

    The Z algorithm (D. Gusfield, "Algorithms on strings, trees, and sequences", 1997, 1.3); with
    the window read backwards these are suffix matches.
    """
    z = [len(window)] + [0] * (len(window) - 1)
    left = right = 0
    for k in range(1, len(window)):
        n = min(z[k - left], right - k) if k < right else 0
        while k + n < len(window) and window[n] == window[k + n]:
            n += 1
        z[k] = n
        if k + n > right:
            left, right = k, k + n
    return z


def _reach(window: Sequence[int], breakers: Breakers) -> int:
    """How many of the latest tokens (`window` is read backwards) come after the last breaker."""
    for back, token in enumerate(window):
        ends = [
            len(tail)
            for tail in breakers.get(token, ())
            if len(tail) <= back and tuple(window[back - len(tail) : back][::-1]) == tail
        ]
        if ends:
            return back - max(ends)
    return len(window)


def breaker_tokens(
    words: Iterable[str], pieces: Iterable[bytes], encode: Callable[[str], Sequence[int]]
) -> Breakers:
    """Token sequences that hold one of `words`: head id to the tails that complete it.

    `pieces` are the bytes of every token by id; `encode` makes tokens of the rest of a word that a
    head has begun. A head that holds the whole word has the empty tail.
    """
    found: dict[int, set[tuple[int, ...]]] = {}
    encoded = [(word, word.encode()) for word in words]
    tails: dict[str, tuple[int, ...]] = {}
    for token, piece in enumerate(pieces):
        for word, raw in encoded:
            if raw in piece:
                found.setdefault(token, set()).add(())
                continue
            for cut in range(1, len(word)):
                if piece.endswith(word[:cut].encode()):
                    rest = word[cut:]
                    if rest not in tails:
                        tails[rest] = tuple(encode(rest))[:TAIL_LIMIT]
                    found.setdefault(token, set()).add(tails[rest])
    return {token: sorted(some) for token, some in found.items()}
