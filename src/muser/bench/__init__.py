"""Measurements that are evidence: what ran, on what, how often, and whether it was right."""

from muser.bench.cells import Cell
from muser.bench.interleave import Pair, interleave
from muser.bench.process import WorkerSide
from muser.bench.session import Plan, reference_isa, run_plan
from muser.bench.side import Loading, Memory, Sample, Side
from muser.bench.spread import Spread, pair_ratios, speed_ratio

__all__ = [
    "Cell",
    "Loading",
    "Memory",
    "Pair",
    "Plan",
    "Sample",
    "Side",
    "Spread",
    "WorkerSide",
    "interleave",
    "pair_ratios",
    "reference_isa",
    "run_plan",
    "speed_ratio",
]
