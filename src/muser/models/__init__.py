"""One file per architecture: metadata in, a flat graph out."""

from collections.abc import Callable, Container, Mapping

from muser.errors import ModelError
from muser.graph import Graph
from muser.models import gemma3, llama, muse_glimmer

Builder = Callable[[Mapping[str, object], Container[str]], Graph]

BUILDERS: Mapping[str, Builder] = {
    gemma3.ARCHITECTURE: gemma3.build,
    llama.ARCHITECTURE: llama.build,
    muse_glimmer.ARCHITECTURE: muse_glimmer.build,
}


class _Everything:
    """Stands for the tensors of a file that is still to be written."""

    def __contains__(self, name: object) -> bool:
        return name != "rope_freqs.weight"


def build(metadata: Mapping[str, object], tensors: Container[str] | None = None) -> Graph:
    """The graph of a GGUF file's metadata and tensor names (None: all that may be there).

    Raises `ModelError` for an unknown architecture or a hyperparameter that cannot be honoured.
    """
    architecture = metadata.get("general.architecture")
    builder = BUILDERS.get(architecture) if isinstance(architecture, str) else None
    if builder is None:
        raise ModelError(
            f"The architecture {architecture!r} is not supported.",
            f"Supported: {', '.join(sorted(BUILDERS))}.",
        )
    return builder(metadata, _Everything() if tensors is None else tensors)


__all__ = ["BUILDERS", "build"]
