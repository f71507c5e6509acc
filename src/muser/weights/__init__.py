"""Tensors of a file bound to a graph's inputs; packed for a processor on demand."""

from typing import TYPE_CHECKING

from muser.weights.bind import BoundTensor, GridTensor, Memory, Weights
from muser.weights.fetch import obtain

if TYPE_CHECKING:
    from muser.weights.packing import Mapped, Packed, PackSource, pack

__all__ = [
    "BoundTensor",
    "GridTensor",
    "Mapped",
    "Memory",
    "PackSource",
    "Packed",
    "Weights",
    "obtain",
    "pack",
]


def __getattr__(name: str) -> object:
    """Packing needs the kernels, which a device without them does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from muser.weights import packing

    return getattr(packing, name)
