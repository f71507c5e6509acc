"""`muser model synth`: a file of random weights, the same bytes from the same seed everywhere."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from muser.cli.progress import obtained, watching
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
    arch: Annotated[
        str | None, Parameter(help="llama (the default), muse-glimmer or gemma3.")
    ] = None,
    like: Annotated[
        str | None,
        Parameter(help="A model to take names, shapes and types from: a catalogue name or a file."),
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of the weights.", converter=whole)] = 0,
    weights: Annotated[
        str | None,
        Parameter(
            help="Type of a tiny model's matrices, Q8_0 unless given (also F32, F16, BF16, Q4_0,"
            " Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K); census: a model of full size."
        ),
    ] = None,
    head_scale: Annotated[
        int,
        Parameter(help="Multiplies the logits; 1, 2, 4 or another power of two.", converter=whole),
    ] = 1,
    force: Annotated[
        bool, Parameter(help="Replace OUT if it exists.", negative=(), show_default=False)
    ] = False,
    sizes: SizeFlags | None = None,
) -> None:
    """Make a model file of random weights: tiny, of full size, or a twin of another file."""
    from muser.models.synth import synthesise

    if like is not None and arch is not None:
        raise UsageError("A twin takes its architecture from its file.", "Leave --arch out.")
    if out.is_file() and not force:
        raise UsageError(f"{out} exists.", "Name another file, or replace it with --force.")
    original = None if like is None else obtained(like)
    with watching("Writing") as watch:
        made = synthesise(
            out,
            architecture=arch or "llama",
            like=original,
            seed=seed,
            weights=weights,
            head_scale=head_scale,
            progress=watch.advance,
            **asdict(sizes or SizeFlags()),
        )
    layout = made.layout
    print(f"{out}: {made.architecture}, {len(layout.tensors)} tensors, {layout.size:,} bytes")
