"""A loaded model that answers: slots, sampling, streams."""

from muser.engine.engine import Engine
from muser.engine.loading import load
from muser.engine.records import Generation, Piece, Timings
from muser.engine.sampler import Sampler
from muser.engine.sampling import Sampling
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
