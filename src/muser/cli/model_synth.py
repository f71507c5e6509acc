"""`muser model synth`: a file of random weights, the same bytes from the same seed everywhere."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from muser.cli.progress import watching
from muser.cli.whole import whole
from muser.errors import UsageError

_SIZES = Group("Sizes (default: those of the preset)", sort_key=1)


def _size(text: str) -> Parameter:
    return Parameter(help=text, group=_SIZES, converter=whole)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class SizeFlags:
    """Fields as in `muser.models.synth.shape.Sizes`."""

    layers: Annotated[int | None, _size("Layers.")] = None
    width: Annotated[int | None, _size("Width of the stream.")] = None
    ffn: Annotated[int | None, _size("Width of the feed-forward part.")] = None
    heads: Annotated[int | None, _size("Query heads.")] = None
    kv_heads: Annotated[int | None, _size("KV heads.")] = None
    head_dim: Annotated[int | None, _size("Elements of a head.")] = None
    vocabulary: Annotated[int | None, _size("Tokens.")] = None
    window: Annotated[int | None, _size("Positions that a sliding layer sees.")] = None
    context: Annotated[int | None, _size("Positions in all.")] = None


def synth(
    out: Annotated[Path, Parameter(help="The file to write.")],
    /,
    *,
    arch: Annotated[str | None, Parameter(help="llama (the default) or muse-glimmer.")] = None,
    like: Annotated[
        Path | None, Parameter(help="A file to take names, shapes and types from.")
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of the weights.", converter=whole)] = 0,
    weights: Annotated[
        str | None,
        Parameter(
            help="Type of a tiny model's matrices, q8_0 unless given (also f32, f16, bf16, q4_0,"
            " q4_1, q4_k, q5_k, q6_k); census: a model of full size."
        ),
    ] = None,
    head_scale: Annotated[
        int,
        Parameter(help="Multiplies the logits; 1, 2, 4 or another power of two.", converter=whole),
    ] = 1,
    sizes: SizeFlags | None = None,
) -> None:
    """Make a model file of random weights: tiny, of full size, or a twin of another file."""
    from muser.models.synth import synthesise

    if like is not None and arch is not None:
        raise UsageError("A twin takes its architecture from its file.", "Leave --arch out.")
    with watching("Writing") as watch:
        made = synthesise(
            out,
            architecture=arch or "llama",
            like=like,
            seed=seed,
            weights=weights,
            head_scale=head_scale,
            progress=lambda done: watch.advance(done, None),
            **asdict(sizes or SizeFlags()),
        )
    layout = made.layout
    print(f"{out}: {made.architecture}, {len(layout.tensors)} tensors, {layout.size:,} bytes")
