"""Measurements that are evidence: what ran, on what, how often, and whether it was right."""

from muser.bench.interleave import Pair, interleave
from muser.bench.process import WorkerSide
from muser.bench.side import Loading, Memory, Sample, Side
from muser.bench.spread import Spread, pair_ratios, speed_ratio

__all__ = [
    "Loading",
    "Memory",
    "Pair",
    "Sample",
    "Side",
    "Spread",
    "WorkerSide",
    "interleave",
    "pair_ratios",
    "speed_ratio",
]
