"""How a token is chosen: parameters, the stages of the chain, the draw. See docs/sampling.md."""

from muser.engine.sampling.parameters import Sampling
from muser.engine.sampling.sampler import Sampler

__all__ = ["Sampler", "Sampling"]
