"""A loaded model that answers: slots, sampling, streams."""

from muser.engine.engine import Engine
from muser.engine.loading import load
from muser.engine.records import Generation, Piece, Timings
from muser.engine.sampling import Sampler, Sampling
from muser.engine.stream import Stream

__all__ = [
    "Engine",
    "Generation",
    "Piece",
    "Sampler",
    "Sampling",
    "Stream",
    "Timings",
    "load",
]
