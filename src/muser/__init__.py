"""Muser runs GGUF language models with the same bits on every device, and names its kernels.

import muser

with muser.load("smollm2-135m") as engine:
    print(engine.generate("The capital of France is", max_tokens=8).text)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muser.engine import Engine, Generation, Piece, Sampling, Stream, Timings, load
    from muser.errors import MuserError

__version__ = "0.1.0"
__all__ = [
    "Engine",
    "Generation",
    "MuserError",
    "Piece",
    "Sampling",
    "Stream",
    "Timings",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import the engine at first use, so that `muser --help` stays fast."""
    if name == "MuserError":
        from muser.errors import MuserError

        return MuserError
    if name in __all__:
        import muser.engine

        return getattr(muser.engine, name)
    raise AttributeError(f"module 'muser' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Completion and `help(muser)` see what `__getattr__` would import."""
    return sorted({*globals(), *__all__})
