"""Models of random weights: the same bytes from the same seed, on every machine."""

from muser.models.synth.shape import WEIGHTS, Sizes
from muser.models.synth.synthesis import Synthesis, plan_synthesis, plan_twin, synthesise

__all__ = ["WEIGHTS", "Sizes", "Synthesis", "plan_synthesis", "plan_twin", "synthesise"]
