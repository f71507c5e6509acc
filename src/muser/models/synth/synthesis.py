"""Models of random weights: the same bytes from the same seed, on every machine.

Matrices are scaled by their input width, so that every projection of a normed row is of size one;
the head is scaled so that logits differ by a few units, far below a softcap of 20.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muser.errors import LimitError, ModelError, UsageError
from muser.formats import (
    READABLE,
    BlockType,
    GgufFile,
    GgufWriter,
    Layout,
    TensorInfo,
    TensorPlan,
    Value,
    lay_out,
    quantise,
)
from muser.models import build
from muser.models.synth.noise import Pools, random_bytes
from muser.models.synth.shape import choose_sizes, choose_type, make_metadata

MUSE_HEAD_POWER = 2  # undoes the logit scale of about 1/5
GEMMA_HEAD_POWER = -6  # of the embedding, which is the head too: a stream full of it repeats itself
GEMMA_OUTPUT_NORM = 64.0  # gives the logits back what the embedding lost
MUSE_QUERY_NORM = 3.87  # what the released model multiplies Q by
MOST_HEAD_SCALE = 1 << 10

Progress = Callable[[int, int], None]
"""Told the bytes done and the bytes of the whole file."""


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A file that is planned but not written: `layout` says all but the tensor bytes."""

    layout: Layout
    architecture: str
    seed: int
    head_power: int

    def write(self, out: Path, progress: Progress | None = None) -> None:
        """Write the file; `progress` is told of each tensor.

        Raises LimitError if the disk has not enough room, UsageError for the name of a folder or
        a device: the finished file takes the place of what has its name.
        """
        if out.exists() and not out.is_file():
            raise UsageError(f"{out} is not a file.", "Name a file that may be written.")
        free = shutil.disk_usage(out.absolute().parent).free
        if free < self.layout.size:
            raise LimitError(
                f"{out} would take {self.layout.size:,} bytes, {free:,} are free.",
                "Choose another disk, fewer layers or a smaller vocabulary.",
            )
        pools = Pools(self.seed, self._needs())
        with GgufWriter(out, self.layout) as writer:
            for info in self.layout.tensors:
                writer.begin(info)
                for piece in self._pieces(pools, info):
                    writer.write(piece)
                if progress is not None:
                    progress(info.offset + info.size, self.layout.size)

    def _needs(self) -> Counter[tuple[BlockType, int]]:
        needed: Counter[tuple[BlockType, int]] = Counter()
        for info in self.layout.tensors:
            if len(info.shape) > 1:
                needed[info.type, self._power(info)] += info.size // info.type.bytes
        return needed

    def _pieces(self, pools: Pools, info: TensorInfo) -> Iterator[NDArray[np.uint8]]:
        if len(info.shape) == 1:
            values = self._vector(info.name, info.shape[0])
            return iter([quantise(info.type, values[None])[0]])
        return pools.take(info.type, self._power(info), info.size // info.type.bytes)

    def _power(self, info: TensorInfo) -> int:
        """Matrices have a root mean square near 2^power: about 1/sqrt(inputs), embeddings 1."""
        tied = all(other.name != "output.weight" for other in self.layout.tensors)
        power = -(info.shape[0].bit_length() // 2)
        if info.name == ("token_embd.weight" if tied else "output.weight"):
            return power + self.head_power
        return 0 if info.name == "token_embd.weight" else power

    def _vector(self, name: str, n: int) -> NDArray[np.float32]:
        """Norm weights: multiples of 1/512 around 1, around 1/2 after a sub-block."""
        muse = self.architecture == "muse-glimmer"
        if muse and name.endswith("attn_q_norm.weight"):
            return np.full(n, MUSE_QUERY_NORM, np.float32)
        if name == "rope_freqs.weight" or (muse and name.endswith("attn_k_norm.weight")):
            return np.ones(n, np.float32)
        noise = random_bytes(self.seed, name, n).astype(np.float32) - np.float32(128)
        if name.endswith(".bias"):
            return noise / np.float32(1024)
        centre = np.float32(0.5 if ".post_" in name else 1.0)
        if self.architecture == "gemma3" and name == "output_norm.weight":
            centre = np.float32(GEMMA_OUTPUT_NORM)
        return centre + noise * (centre / np.float32(512))


def plan_synthesis(
    *,
    architecture: str = "llama",
    weights: str = "q8_0",
    seed: int = 0,
    head_scale: int = 1,
    **sizes: int | None,
) -> Synthesis:
    """Plan a model of a preset, changed by `sizes` (the fields of `Sizes`).

    `weights` is a type's name, in either case, for a tiny model, or `census` for one of full size.
    `head_scale`, a power of two, multiplies the logits. Raises UsageError for what makes no model.
    """
    weights = weights.lower()
    chosen = choose_sizes(architecture, weights, sizes)
    metadata = make_metadata(architecture, weights, chosen, seed)
    tied = architecture == "gemma3"  # released files have no head of their own
    table = build(metadata, () if tied else None).weights
    plans = [
        TensorPlan(name, shape, choose_type(architecture, weights, name, shape, chosen.layers))
        for name, shape in table.items()
    ]
    power = _head_power(architecture, head_scale)
    return Synthesis(lay_out(metadata, plans), architecture, seed, power)


def plan_twin(like: Path, *, seed: int = 0, head_scale: int = 1) -> Synthesis:
    """Plan a file with the metadata and the tensor names, shapes and types of `like`.

    Raises FormatError if `like` is damaged, ModelError if it holds types that have no codec.
    """
    with GgufFile.open(like) as file:
        for info in file.tensors.values():
            if info.type not in READABLE:
                raise ModelError(
                    f"{like}: the tensor {info.name!r} is of type {info.type.name}, which cannot"
                    " be synthesised.",
                    "Choose a file of F32, F16, BF16, Q8_0, Q4_0 to Q5_1 or K-quants from 4 to 6.",
                )
        architecture = _architecture(file.metadata, like)
        plans = (TensorPlan(t.name, t.shape, t.type) for t in file.tensors.values())
        layout = lay_out(file.metadata, plans)
    return Synthesis(layout, architecture, seed, _head_power(architecture, head_scale))


def synthesise(
    out: str | os.PathLike[str],
    *,
    architecture: str = "llama",
    like: str | os.PathLike[str] | None = None,
    seed: int = 0,
    weights: str | None = None,
    head_scale: int = 1,
    progress: Progress | None = None,
    **sizes: int | None,
) -> Synthesis:
    """Plan and write: a twin of `like`, or a preset as `plan_synthesis` describes.

    Raises UsageError if `like` comes with sizes or a weight type, and what the plans raise.
    """
    if like is None:
        plan = plan_synthesis(
            architecture=architecture,
            weights=weights or "q8_0",
            seed=seed,
            head_scale=head_scale,
            **sizes,
        )
    elif weights is not None or any(value is not None for value in sizes.values()):
        raise UsageError(
            "A twin takes its sizes and types from the file that it is like.",
            "Leave out the sizes and the weight type, or leave out --like.",
        )
    else:
        plan = plan_twin(Path(like), seed=seed, head_scale=head_scale)
    plan.write(Path(out), progress)
    return plan


def _architecture(metadata: Mapping[str, Value], path: Path) -> str:
    value = metadata.get("general.architecture")
    if not isinstance(value, str):
        raise ModelError(
            f"{path}: general.architecture is missing.", "Choose a model file of a known kind."
        )
    return value


def _head_power(architecture: str, head_scale: int) -> int:
    if not 0 < head_scale <= MOST_HEAD_SCALE or head_scale & (head_scale - 1):
        raise UsageError(
            f"A head scale of {head_scale} is not a power of two up to {MOST_HEAD_SCALE}.",
            "Give 1, 2, 4, 8, 16 or so.",
        )
    own = {"muse-glimmer": MUSE_HEAD_POWER, "gemma3": GEMMA_HEAD_POWER}
    return own.get(architecture, 0) + head_scale.bit_length() - 1
