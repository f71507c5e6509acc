"""Other engines as sides, each in a process of its own."""

from muser.bench.rivals.flyweight_side import FlyweightSide
from muser.bench.rivals.llama_side import LlamaLibrarySide, LlamaPythonSide

__all__ = ["FlyweightSide", "LlamaLibrarySide", "LlamaPythonSide"]
