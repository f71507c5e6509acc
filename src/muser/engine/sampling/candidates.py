"""The tokens still in the running: their order, their integer weights, and the draw."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from muser.engine.sampling import hostmath

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

WEIGHT_ONE = 1 << 40
_SPAN = 256
_FIRST = (1024, 16384)
_U32 = np.uint64(0xFFFFFFFF)
_BITS32 = np.uint64(32)
_TOP = np.uint32(0x80000000)


def ordered(logits: F32) -> I32:
    """int32 that compare as the logits' bits do (−0 below +0)."""
    bits = np.ascontiguousarray(logits).view(np.int32)
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def keys(ids: I64, logits: F32) -> npt.NDArray[np.uint64]:
    """Token keys, u64: ordered bits of the logit, then 2^32 − 1 − id; the greatest comes first."""
    high = ordered(logits).view(np.uint32) ^ _TOP
    return (high.astype(np.uint64) << _BITS32) | (_U32 - ids.astype(np.uint64))


def _unkey(key: npt.NDArray[np.uint64]) -> tuple[I64, F32]:
    high = (key >> _BITS32).astype(np.uint32) ^ _TOP
    bits = ordered(high.view(np.float32))  # its own inverse
    return (_U32 - (key & _U32)).astype(np.int64), bits.view(np.float32)


def _bar(order: I32, count: int) -> int:
    # `count` spans have a greatest key of at least this, so `count` keys have: a cheap lower bound
    # of the count-th greatest key.
    spans = order[: order.size // _SPAN * _SPAN].reshape(-1, _SPAN)
    if len(spans) < count:
        return int(order.min())
    peaks = spans.max(axis=1)
    return int(np.partition(peaks, peaks.size - count)[peaks.size - count])


@dataclass(frozen=True, eq=False)
class Candidates:
    """`ids` int64[n] and their finite `logits` f32[n], n ≥ 1.

    Either in token-key order (`in_order`) or by ascending id: so among equal logits the lower id
    always comes first.
    """

    ids: I64
    logits: F32
    in_order: bool

    @property
    def size(self) -> int:
        return int(self.ids.size)

    def sort(self) -> "Candidates":
        """The same candidates in token-key order."""
        if self.in_order:
            return self
        ids, logits = _unkey(np.sort(keys(self.ids, self.logits))[::-1])
        return Candidates(ids, logits, in_order=True)

    def best(self, count: int) -> "Candidates":
        """The first `count` candidates in token-key order, in that order."""
        if count >= self.size or self.in_order:
            return self.sort().take(slice(0, count))
        order = ordered(self.logits)
        near = np.flatnonzero(order >= _bar(order, count))
        order = order[near]
        kth = np.partition(order, order.size - count)[order.size - count]
        above = near[order > kth]
        level = near[order == kth][: count - above.size]
        chosen = np.concatenate([above, level])
        return Candidates(self.ids[chosen], self.logits[chosen], in_order=False).sort()

    def first(self) -> int:
        """The id that comes first in token-key order."""
        return int(self.ids[0 if self.in_order else np.argmax(ordered(self.logits))])

    def take(self, chosen: slice | npt.NDArray[np.bool_]) -> "Candidates":
        """The candidates under a slice or a mask, in unchanged order."""
        return Candidates(self.ids[chosen], self.logits[chosen], self.in_order)

    def with_logits(self, logits: F32) -> "Candidates":
        """Other logits for the same ids; the order is made again where it was held."""
        moved = Candidates(self.ids, logits, in_order=False)
        return moved.sort() if self.in_order else moved

    def positions(self, ids: I64) -> I64:
        """Where `ids` stand among the candidates, −1 for those that do not."""
        by_id = np.argsort(self.ids) if self.in_order else None
        near = np.minimum(np.searchsorted(self.ids, ids, sorter=by_id), self.size - 1)
        if by_id is not None:
            near = by_id[near]
        return np.where(self.ids[near] == ids, near, -1)

    @cached_property
    def distances(self) -> hostmath.F64:
        """f64[n]: greatest logit − logit, ≥ 0."""
        return np.float64(np.max(self.logits)) - self.logits.astype(np.float64)

    @cached_property
    def weights(self) -> I64:
        """int64[n]: exp(−distance)·2^40 rounded half to even; the greatest logit has 2^40."""
        return weigh(-self.distances)

    @cached_property
    def total(self) -> int:
        """Σ weights; below 2^62 for rows up to 2^22 tokens."""
        return int(np.sum(self.weights))

    @cached_property
    def mean_distance(self) -> float:
        """Σ weight·distance / Σ weight: the entropy less the log of the partition."""
        return hostmath.tree_sum(self.weights.astype(np.float64) * self.distances) / self.total

    @property
    def log_partition(self) -> float:
        """ln Σ exp(−distance), so that −ln p = distance + this."""
        return hostmath.log(self.total / WEIGHT_ONE)


def reach(given: Candidates, bar: int) -> tuple[Candidates, int]:
    """The first candidates in token-key order, and how many it takes for weights of `bar`.

    Sorts no more of a long row than that needs; 1 ≤ `bar` ≤ total.
    """
    for most in (*_FIRST, given.size):
        head = given.best(most)
        cumulative = np.cumsum(head.weights)
        if cumulative[-1] >= bar:
            break
    return head, int(np.searchsorted(cumulative, bar, side="left")) + 1


def weigh(exponents: hostmath.F64) -> I64:
    """int64: e^x·2^40 rounded half to even, for x ≤ 0."""
    return np.rint(hostmath.exp(exponents) * float(WEIGHT_ONE)).astype(np.int64)


def choose(weights: I64, draw: int) -> int:
    """Index of the first weight whose cumulative sum exceeds (u64 draw · total) >> 64."""
    cumulative = np.cumsum(weights)
    bar = (draw * int(cumulative[-1])) >> 64
    return int(np.searchsorted(cumulative, bar, side="right"))
