"""Tensors of a file bound to a graph's inputs."""

from muser.weights.bind import BoundTensor, GridTensor, Weights

__all__ = ["BoundTensor", "GridTensor", "Weights"]
