"""Models of random weights: the same bytes from the same seed, on every machine."""

from muser.models.synth.shape import WEIGHTS, Sizes
from muser.models.synth.synthesis import Synthesis, plan_synthesis, plan_twin, synthesise
from muser.models.synth.tiny import CENSUS_SIZES, TINY, make_tiny

__all__ = [
    "CENSUS_SIZES",
    "TINY",
    "WEIGHTS",
    "Sizes",
    "Synthesis",
    "make_tiny",
    "plan_synthesis",
    "plan_twin",
    "synthesise",
]
