"""Last stages: each uses exactly one u64 draw and ends with one token."""

import math
from typing import Protocol

import numpy as np

from muser.engine.sampling import hostmath
from muser.engine.sampling.candidates import Candidates, choose, reach, weigh
from muser.engine.sampling.hostmath import LN2_HI, LN2_LO, exp1, log

LN2 = LN2_HI + LN2_LO
# How many of the first tokens estimate the slope of Zipf's law in mirostat 1.
ZIPF_TOKENS = 100
# Below this the limit for ε → 0 stands in for ε/(1 − n^-ε).
FLAT = 2.0**-20
# Adaptive-p: height, sharpness and width of the target distribution, upstream's constants.
PEAK, SHARPNESS, WIDTH = 5.0, 10.0, 0.3


class Draw(Protocol):
    """The end of a chain. `state` is what it remembers between tokens, empty if nothing."""

    state: tuple[float, ...]

    def __call__(self, given: Candidates, draw: int) -> int:
        """The id chosen from `given` by the u64 `draw`."""
        ...


class Plain:
    """In proportion to the weights, in token-key order."""

    state: tuple[float, ...] = ()

    def __call__(self, given: Candidates, draw: int) -> int:
        head, count = reach(given, ((draw * given.total) >> 64) + 1)
        return int(head.ids[count - 1])


class Mirostat:
    """Holds the surprise of the text near `tau` bits by moving a limit μ on each token's own.

    Basu et al., "Mirostat", 2020: version 1 turns μ into a number of tokens by Zipf's law over all
    that it is given, version 2 drops every token of more surprise than μ.
    """

    def __init__(self, version: int, tau: float, eta: float) -> None:
        self._version, self._tau, self._eta = version, tau, eta
        self.state: tuple[float, ...] = (2.0 * tau,)

    def __call__(self, given: Candidates, draw: int) -> int:
        if self._version == 1:
            given = given.best(self._zipf_count(given))
        else:
            given = self._quiet(given).sort()
        index = choose(given.weights, draw)
        self._move(surprise(given)[index])
        return int(given.ids[index])

    def _move(self, observed: float) -> None:
        (limit,) = self.state
        self.state = (limit - self._eta * (float(observed) - self._tau),)

    def _quiet(self, given: Candidates) -> Candidates:
        quiet = surprise(given) <= self.state[0]
        return given.take(quiet) if quiet.any() else given.best(1)

    def _zipf_count(self, given: Candidates) -> int:
        slope = zipf_slope(given)
        if slope is None:
            return given.size
        excess = slope - 1.0
        size = log(float(given.size))
        spread = 1.0 / size
        if abs(excess) > FLAT:
            spread = excess / (1.0 - exp1(-excess * size))
        scaled = self.state[0] * LN2 + log(spread)
        if slope <= 0.0:
            return given.size if scaled > 0.0 else 1
        return max(1, math.floor(min(exp1(scaled / slope), float(given.size))))


class Adaptive:
    """Prefers tokens whose probability is near a target that corrects past misses.

    Upstream's adaptive-p: weight e^(5 − 10·d²/(1 + d)), d = |p − target'| / 0.3.
    """

    def __init__(self, target: float, decay: float) -> None:
        self._target, self._decay = target, decay
        self.state: tuple[float, ...] = (target / (1.0 - decay), 1.0 / (1.0 - decay))

    def __call__(self, given: Candidates, draw: int) -> int:
        given = given.sort()
        summed, count = self.state
        target = min(max(2.0 * self._target - summed / count, 0.0), 1.0)
        shares = given.weights.astype(np.float64) / float(given.total)
        d = np.abs(shares - target) / WIDTH
        scores = PEAK - SHARPNESS * (d * d) / (1.0 + d)
        index = choose(weigh(scores - scores.max()), draw)
        self.state = (float(shares[index]) + self._decay * summed, 1.0 + self._decay * count)
        return int(given.ids[index])


def surprise(given: Candidates) -> hostmath.F64:
    """−log₂ p of each candidate, f64[n]."""
    return (given.distances + given.log_partition) / LN2


def zipf_slope(given: Candidates) -> float | None:
    """Least squares of the log of p against the log of rank; None for a single candidate."""
    d = given.best(ZIPF_TOKENS).distances
    if d.size < 2:
        return None
    up = down = 0.0
    for i in range(d.size - 1):
        t = log((i + 2) / (i + 1))
        up += t * float(d[i + 1] - d[i])
        down += t * t
    return up / down
