"""Stages that thin out the candidates or change their temperature.

A stage maps (candidates, history) to candidates and never to none. Their order and names are
upstream's (llama.cpp); their arithmetic is `docs/sampling.md`: integer weights, exact comparisons.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from muser.engine.sampling import hostmath
from muser.engine.sampling.candidates import Candidates, reach
from muser.engine.sampling.rng import Mt19937
from muser.errors import ArithmeticFault

History = Sequence[int]
Stage = Callable[[Candidates, History], Candidates]


@dataclass(frozen=True)
class TopNSigma:
    """Keeps what lies within n standard deviations (population) of the greatest logit.

    Tang et al., "Top-nσ: not all logits are you need", 2024. σ is compared squared: no root.
    """

    n: float

    def __call__(self, given: Candidates, _history: History) -> Candidates:
        d = given.distances
        deviation = d - hostmath.tree_sum(d) / given.size
        variance = hostmath.tree_sum(deviation * deviation) / given.size
        return given.take(d * d <= (self.n * self.n) * variance)


@dataclass(frozen=True)
class TopK:
    """Keeps the first k in token-key order."""

    k: int

    def __call__(self, given: Candidates, _history: History) -> Candidates:
        return given.best(self.k)


@dataclass(frozen=True)
class Typical:
    """Keeps the tokens whose surprise is nearest the entropy, until their share exceeds p.

    Meister et al., "Locally typical sampling", 2022. |−ln p − entropy| = |distance − Σ p·distance|:
    the logs cancel.
    """

    p: float
    min_keep: int

    def __call__(self, given: Candidates, _history: History) -> Candidates:
        given = given.sort()
        away = np.abs(given.distances - given.mean_distance)
        nearest = np.argsort(away, kind="stable")
        cumulative = np.cumsum(given.weights[nearest])
        bar = hostmath.share_floor(self.p, given.total)
        count = int(np.searchsorted(cumulative, bar, side="right")) + 1
        kept = np.zeros(given.size, dtype=np.bool_)
        kept[nearest[: max(count, self.min_keep)]] = True
        return given.take(kept)


@dataclass(frozen=True)
class TopP:
    """Keeps the fewest first tokens whose share is at least p.

    Holtzman et al., "The curious case of neural text degeneration", 2019.
    """

    p: float
    min_keep: int

    def __call__(self, given: Candidates, _history: History) -> Candidates:
        head, count = reach(given, max(1, hostmath.share_ceil(self.p, given.total)))
        if count < self.min_keep:
            return given.best(self.min_keep)
        return head.take(slice(0, count))


@dataclass(frozen=True)
class MinP:
    """Keeps what is at least p times as likely as the first token, and `min_keep` in any case.

    Nguyen et al., "Turning up the heat: min-p sampling", 2024.
    """

    p: float
    min_keep: int

    def __call__(self, given: Candidates, _history: History) -> Candidates:
        kept = given.weights >= hostmath.share_ceil(self.p, int(given.weights.max()))
        count = int(np.count_nonzero(kept))
        if count >= self.min_keep:
            return given.take(kept)
        return given.best(self.min_keep)


@dataclass(frozen=True)
class Xtc:
    """With a chance, drops all tokens of at least `threshold` share but the last of them.

    P. Weidmann, "Exclude top choices", 2024 (text-generation-webui #6335). `draws` is its own
    generator and gives one word for each call with two candidates or more.
    """

    probability: float
    threshold: float
    min_keep: int
    draws: Mt19937

    def __call__(self, given: Candidates, _history: History) -> Candidates:
        if given.size < 2:
            return given
        if self.draws.next_u32() > hostmath.share_floor(self.probability, 1 << 32):
            return given
        given = given.sort()
        likely = given.weights >= hostmath.share_ceil(self.threshold, given.total)
        last = int(np.count_nonzero(np.logical_and.accumulate(likely))) - 1
        if last <= 0 or given.size - last < self.min_keep:
            return given
        return given.take(slice(last, None))


@dataclass(frozen=True)
class Temperature:
    """Divides the logits in f32; at 0 only the first token stays."""

    temperature: float

    def __call__(self, given: Candidates, _history: History) -> Candidates:
        return divide(given, self.temperature)


@dataclass(frozen=True)
class DynamicTemperature:
    """A temperature between t − range and t + range that grows with the entropy.

    The entropy is a share of its greatest value, ln n, and raised to `exponent`.
    """

    temperature: float
    range: float
    exponent: float

    def __call__(self, given: Candidates, _history: History) -> Candidates:
        if given.size < 2:
            return given
        entropy = given.mean_distance + given.log_partition
        share = min(max(entropy / hostmath.log(float(given.size)), 0.0), 1.0)
        low = max(0.0, self.temperature - self.range)
        high = self.temperature + self.range
        return divide(given, low + (high - low) * hostmath.power(share, self.exponent))


def divide(given: Candidates, temperature: float) -> Candidates:
    """Candidates with every logit ÷ f32(temperature); only the first one where that is 0.

    Raises ArithmeticFault where a quotient leaves the finite numbers.
    """
    divisor = np.float32(temperature)
    if not divisor > 0:
        return given.best(1)
    with np.errstate(over="ignore"):
        logits = given.logits / divisor
    if not np.isfinite(logits).all():
        raise ArithmeticFault(
            f"Temperature {temperature} drives a logit out of the finite numbers.",
            "Raise --temperature, or set it to 0 for the most likely token.",
        )
    return given.with_logits(logits)
