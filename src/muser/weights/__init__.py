"""Tensors of a file bound to a graph's inputs."""

from muser.weights.bind import BoundTensor, GridTensor, Weights
from muser.weights.fetch import obtain
from muser.weights.packing import Packed, pack

__all__ = ["BoundTensor", "GridTensor", "Packed", "Weights", "obtain", "pack"]
