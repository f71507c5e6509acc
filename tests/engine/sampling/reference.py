"""The sampler once more, in plain Python: lists, integers, fractions and scalar floats.

Follows docs/sampling.md word for word and shares no code with the package but `Sampling`.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from muser.engine.sampling.parameters import Sampling

Token = tuple[int, float]  # id, logit
LN2_HI, LN2_LO = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
ONE = 2**40


def f32(x: float) -> float:
    """Rounded to f32; of a sum, product or quotient of two f32 that is the f32 operation."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def exp(x: float) -> float:
    if x < -700.0:
        return 0.0
    n = round(x * LOG2_E)
    r = (x - n * LN2_HI) - n * LN2_LO
    y = 1.0 / math.factorial(13)
    for k in range(12, -1, -1):
        y = y * r + 1.0 / math.factorial(k)
    return math.ldexp(y, n)


def log(x: float) -> float:
    e = math.floor(math.log2(x))
    m = x / 2.0**e
    while m >= 2 * float.fromhex("0x1.6a09e667f3bcdp-1"):
        m, e = m / 2, e + 1
    while m < float.fromhex("0x1.6a09e667f3bcdp-1"):
        m, e = m * 2, e - 1
    s = (m - 1.0) / (m + 1.0)
    y = 0.0
    for k in range(10, -1, -1):
        y = y * (s * s) + 1.0 / (2 * k + 1)
    return e * LN2_HI + (2 * s * y + e * LN2_LO)


def tree(terms: Sequence[float]) -> float:
    lanes = list(terms)
    while len(lanes) & (len(lanes) - 1):
        lanes.append(0.0)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[i] + lanes[half + i] for i in range(half)]
    return lanes[0]


def in_order(given: Sequence[Token]) -> list[Token]:
    return sorted(given, key=lambda token: (-token[1], token[0]))


def distances(given: Sequence[Token]) -> list[float]:
    top = max(logit for _, logit in given)
    return [top - logit for _, logit in given]


def weights(given: Sequence[Token]) -> list[int]:
    return [round(exp(-d) * ONE) for d in distances(given)]


def mean_distance(given: Sequence[Token]) -> float:
    w = weights(given)
    products = [float(x) * d for x, d in zip(w, distances(given), strict=True)]
    return tree(products) / sum(w)


def drawn(w: Sequence[int], draw: int) -> int:
    bar, total = (draw * sum(w)) >> 64, 0
    for index, weight in enumerate(w):
        total += weight
        if total > bar:
            return index
    raise AssertionError


def penalties(given: Sequence[Token], s: Sampling, history: Sequence[int]) -> list[Token]:
    seen = list(history) if s.repeat_last_n < 0 else list(history)[::-1][: s.repeat_last_n]
    out = []
    for token, logit in given:
        count = seen.count(token)
        if count:
            repeat = f32(s.repeat_penalty)
            logit = f32(logit / repeat) if logit > 0 else f32(logit * repeat)
            frequent = f32(count * f32(s.frequency_penalty))
            logit = f32(logit - f32(frequent + f32(s.presence_penalty)))
        out.append((token, logit))
    return out


def after_breaker(window: Sequence[int], breakers: dict[int, list[tuple[int, ...]]]) -> int:
    """How many tokens at the end of the window come after the last head and its longest tail."""
    for start in range(len(window) - 1, -1, -1):
        rest = window[start + 1 :]
        ends = [len(t) for t in breakers.get(window[start], []) if list(rest[: len(t)]) == list(t)]
        if ends:
            return len(rest) - max(ends)
    return len(window)


def dry(
    given: Sequence[Token],
    s: Sampling,
    history: Sequence[int],
    breakers: dict[int, list[tuple[int, ...]]],
) -> list[Token]:
    window = list(history) if s.dry_last_n < 0 else list(history)[-s.dry_last_n :]
    reach = after_breaker(window, breakers)
    longest: dict[int, int] = {}
    for end in range(1, len(window)):
        length = 0
        while length < end and window[end - 1 - length] == window[-1 - length]:
            length += 1
        length = min(length, reach)
        if length >= s.dry_allowed_length:
            longest[window[end]] = max(longest.get(window[end], 0), length)
    if len(window) <= s.dry_allowed_length:
        longest = {}
    out = []
    for token, logit in given:
        if token in longest:
            power = 1.0
            for _ in range(longest[token] - s.dry_allowed_length):
                power = power if power >= 2.0**100 else power * s.dry_base
            logit = f32(logit - f32(min(s.dry_multiplier * power, 2.0**120)))
        out.append((token, logit))
    return out


def top_n_sigma(given: list[Token], s: Sampling) -> list[Token]:
    if s.top_n_sigma <= 0:
        return given
    d = distances(given)
    mean = tree(d) / len(d)
    variance = tree([(x - mean) * (x - mean) for x in d]) / len(d)
    bound = s.top_n_sigma * s.top_n_sigma * variance
    return [token for token, x in zip(given, d, strict=True) if x * x <= bound]


def top_k(given: list[Token], s: Sampling) -> list[Token]:
    return in_order(given)[: s.top_k] if s.top_k > 0 else given


def typ_p(given: list[Token], s: Sampling) -> list[Token]:
    if s.typical_p >= 1:
        return given
    given = in_order(given)
    mean, w, d = mean_distance(given), weights(given), distances(given)
    nearest = sorted(range(len(given)), key=lambda i: (abs(d[i] - mean), i))
    kept, total = [], 0
    for i in nearest:
        kept.append(i)
        total += w[i]
        if total > Fraction(s.typical_p) * sum(w) and len(kept) >= s.min_keep:
            break
    return [given[i] for i in sorted(kept)]


def top_p(given: list[Token], s: Sampling) -> list[Token]:
    if s.top_p >= 1:
        return given
    given, total = in_order(given), 0
    w = weights(given)
    for count, weight in enumerate(w, start=1):
        total += weight
        if total >= Fraction(s.top_p) * sum(w) and count >= s.min_keep:
            return given[:count]
    return given


def min_p(given: list[Token], s: Sampling) -> list[Token]:
    w = weights(given)
    kept = [t for t, x in zip(given, w, strict=True) if x >= Fraction(s.min_p) * ONE]
    if s.min_p <= 0:
        return given
    return kept if len(kept) >= s.min_keep else in_order(given)[: s.min_keep]


def temperature(given: list[Token], t: float) -> list[Token]:
    if f32(t) <= 0:
        return in_order(given)[:1]
    return [(token, f32(logit / f32(t))) for token, logit in given]


def dynamic_temperature(given: list[Token], s: Sampling) -> list[Token]:
    if len(given) < 2:
        return given
    entropy = mean_distance(given) + log(float(Fraction(sum(weights(given)), ONE)))
    share = min(max(entropy / log(float(len(given))), 0.0), 1.0)
    if s.dynatemp_exponent == 0:
        share = 1.0
    elif s.dynatemp_exponent != 1 and share > 0:
        share = exp(s.dynatemp_exponent * log(share))
    low, high = max(0.0, s.temperature - s.dynatemp_range), s.temperature + s.dynatemp_range
    return temperature(given, low + (high - low) * share)


@dataclass
class Reference:
    """One request. `words` are two generators seeded alike: the draws and XTC's."""

    s: Sampling
    breakers: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.words = [np.random.RandomState(self.s.seed) for _ in range(2)]
        self.limit = 2 * self.s.mirostat_tau
        decay = 1 - self.s.adaptive_p_decay
        self.memory = (self.s.adaptive_p_target / decay, 1 / decay)

    def word(self, which: int) -> int:
        return int(self.words[which].randint(0, 2**32, dtype=np.uint32))

    def stage(self, name: str, given: list[Token], history: Sequence[int]) -> list[Token]:
        match name:
            case "penalties":
                return penalties(given, self.s, history)
            case "dry" if self.s.dry_multiplier > 0 and self.s.dry_last_n:
                return dry(given, self.s, history, self.breakers)
            case "dry":
                return given
            case "xtc":
                return self.xtc(given)
            case "temperature" if self.s.dynatemp_range > 0:
                return dynamic_temperature(given, self.s)
            case "temperature":
                return temperature(given, self.s.temperature)
        return globals()[name](given, self.s)

    def xtc(self, given: list[Token]) -> list[Token]:
        s = self.s
        if s.xtc_probability <= 0 or s.xtc_threshold > 0.5 or len(given) < 2:
            return given
        if self.word(1) > Fraction(s.xtc_probability) * 2**32:
            return given
        given = in_order(given)
        w, last = weights(given), -1
        while last + 1 < len(w) and w[last + 1] >= Fraction(s.xtc_threshold) * sum(w):
            last += 1
        return given[last:] if last > 0 and len(given) - last >= s.min_keep else given

    def pick(self, logits: Sequence[float], history: Sequence[int]) -> int:
        given = [(i, float(x)) for i, x in enumerate(logits)]
        names = list(self.s.order)
        if self.s.greedy or self.s.mirostat:
            names = [name for name in names if name in ("penalties", "dry")]
        if self.s.mirostat:
            names.append("temperature")
        for name in names:
            given = self.stage(name, given, history)
        given = in_order(given)
        return given[0][0] if self.s.greedy else self.draw(given)

    def draw(self, given: list[Token]) -> int:
        low = self.word(0)
        draw = low + self.word(0) * 2**32
        if self.s.mirostat:
            return self.mirostat(given, draw)
        if self.s.adaptive_p_target >= 0:
            return self.adaptive(given, draw)
        return given[drawn(weights(given), draw)][0]

    def mirostat(self, given: list[Token], draw: int) -> int:
        bits = self.bits(given)
        if self.s.mirostat == 2:
            given = [t for t, b in zip(given, bits, strict=True) if b <= self.limit] or given[:1]
        else:
            given = given[: self.zipf(given)]
        index = drawn(weights(given), draw)
        self.limit -= self.s.mirostat_eta * (self.bits(given)[index] - self.s.mirostat_tau)
        return given[index][0]

    def bits(self, given: list[Token]) -> list[float]:
        partition = log(float(Fraction(sum(weights(given)), ONE)))
        return [(d + partition) / (LN2_HI + LN2_LO) for d in distances(given)]

    def zipf(self, given: list[Token]) -> int:
        d = distances(given)[:100]
        if len(d) < 2:
            return len(given)
        up = down = 0.0
        for i in range(len(d) - 1):
            t = log((i + 2) / (i + 1))
            up, down = up + t * (d[i + 1] - d[i]), down + t * t
        slope, size = up / down, log(float(len(given)))
        excess = slope - 1
        spread = 1 / size
        if abs(excess) > 2.0**-20:
            spread = excess / (1 - exp(min(-excess * size, 700.0)))
        scaled = self.limit * (LN2_HI + LN2_LO) + log(spread)
        if slope <= 0:
            return len(given) if scaled > 0 else 1
        return max(1, math.floor(min(exp(min(scaled / slope, 700.0)), len(given))))

    def adaptive(self, given: list[Token], draw: int) -> int:
        w = weights(given)
        summed, count = self.memory
        target = min(max(2 * self.s.adaptive_p_target - summed / count, 0.0), 1.0)
        d = [abs(x / float(sum(w)) - target) / 0.3 for x in w]
        scores = [5 - 10 * (x * x) / (1 + x) for x in d]
        index = drawn([round(exp(x - max(scores)) * ONE) for x in scores], draw)
        decay = self.s.adaptive_p_decay
        self.memory = (w[index] / float(sum(w)) + decay * summed, 1 + decay * count)
        return given[index][0]
