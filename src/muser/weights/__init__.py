"""Tensors of a file bound to a graph's inputs."""

from muser.weights.bind import BoundTensor, GridTensor, Weights
from muser.weights.fetch import obtain

__all__ = ["BoundTensor", "GridTensor", "Weights", "obtain"]
