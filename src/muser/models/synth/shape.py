"""What a synthetic model is shaped like: presets, metadata, and which tensor gets which type."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from muser.errors import UsageError
from muser.formats import READABLE, BlockType, Value
from muser.models.synth.vocabulary import make_vocabulary

CENSUS = "census"
"""The weight choice that means: full size, in the mix of types of a released Q4_K_M file."""

WEIGHTS: Mapping[str, BlockType] = {
    kind.name.lower(): kind for kind in sorted(READABLE, key=lambda kind: kind.name)
}
"""The other weight choices: one type for every matrix."""

# `general.file_type` of llama.cpp (`llama_ftype`).
_FILE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q4_k": 15,
    "q5_k": 17,
    "q6_k": 18,
    "bf16": 32,
    CENSUS: 15,
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths in elements, `window` in positions (0 for an architecture without one)."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    window: int
    context: int


# Four layers are one turn of the pattern 3:1. Odd on purpose: an attention width that is not the
# stream's, an FFN width that is no power of two. K-quants ask for multiples of 256.
_TINY = Sizes(4, 64, 160, 4, 2, 32, 320, 8, 1024)
_TINY_K = Sizes(4, 256, 768, 16, 2, 32, 320, 8, 1024)
_GEMMA_LAYERS = 7  # one turn of its pattern 5:1, and one layer with a window more
_FULL: Mapping[str, Sizes] = {
    "muse-glimmer": Sizes(52, 6656, 19968, 32, 2, 128, 202048, 2048, 131072),  # the released file's
    "gemma3": Sizes(18, 640, 2048, 4, 1, 256, 262144, 512, 32768),  # 270M
    "llama": Sizes(16, 2048, 8192, 32, 8, 64, 128256, 0, 131072),  # Llama 3.2 1B
}


def choose_sizes(architecture: str, weights: str, overrides: Mapping[str, int | None]) -> Sizes:
    """The preset for a weight choice, with `overrides` by field name (None: keep the preset).

    Raises UsageError for an unknown architecture, weight choice or a number that is not positive.
    """
    if architecture not in _FULL:
        raise UsageError(
            f"The architecture {architecture!r} cannot be synthesised.",
            f"Choose one of {', '.join(sorted(_FULL))}.",
        )
    if weights not in _FILE_TYPES:
        raise UsageError(
            f"The weight type {weights!r} is unknown.",
            f"Choose one of {', '.join(kind.name for kind in WEIGHTS.values())}, or {CENSUS}.",
        )
    preset = _TINY_K if weights.endswith("_k") else _TINY
    if architecture == "gemma3":
        preset = replace(preset, layers=_GEMMA_LAYERS)
    preset = _FULL[architecture] if weights == CENSUS else preset
    given = {name: value for name, value in overrides.items() if value is not None}
    for name, value in given.items():
        if name not in {field.name for field in fields(Sizes)} or value <= 0:
            raise UsageError(
                f"{name} = {value} is no size of a model.",
                f"Positive numbers for {', '.join(field.name for field in fields(Sizes))}.",
            )
    return replace(preset, **given)


def make_metadata(architecture: str, weights: str, sizes: Sizes, seed: int) -> dict[str, Value]:
    """Everything before the tensor records of a synthetic file."""
    general: dict[str, Value] = {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": f"Synthetic {architecture}, seed {seed}",
        "general.file_type": _FILE_TYPES[weights],
        "general.quantization_version": 2,
    }
    own = {f"{architecture}.{key}": value for key, value in _own_keys(architecture, sizes).items()}
    return general | own | make_vocabulary(architecture, sizes.vocabulary)


def _own_keys(architecture: str, sizes: Sizes) -> dict[str, Value]:
    keys: dict[str, Value] = {
        "block_count": sizes.layers,
        "context_length": sizes.context,
        "embedding_length": sizes.width,
        "feed_forward_length": sizes.ffn,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    if architecture == "muse-glimmer":  # keys and values of the released file
        return keys | {
            "attention.sliding_window": sizes.window,
            "attention.sliding_window_pattern": 4,
            "rope.freq_base": 500000.0,
            "logit_scale": float(np.float32(0.1961161345243454)),
            "final_logit_softcapping": 20.0,
        }
    if architecture == "gemma3":
        return keys | {
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.sliding_window": sizes.window,
            "rope.freq_base": 1000000.0,
        }
    return keys | {
        "rope.freq_base": 10000.0,
        "rope.dimension_count": sizes.head_dim,
        "vocab_size": sizes.vocabulary,
    }


def choose_type(
    architecture: str, weights: str, name: str, shape: tuple[int, ...], layers: int
) -> BlockType:
    """The type of one tensor: vectors stay F32, matrices follow the weight choice."""
    if len(shape) == 1:
        return BlockType.F32
    if weights != CENSUS:
        return WEIGHTS[weights]
    if architecture == "gemma3":
        return _choose_gemma_type(name, layers)
    if name == "output.weight":
        return BlockType.Q5_K if architecture == "muse-glimmer" else BlockType.Q6_K
    if name.endswith(("attn_v.weight", "ffn_down.weight")):
        layer = int(name.split(".")[1])
        return BlockType.Q6_K if _has_more_bits(layer, layers) else BlockType.Q4_K
    return BlockType.Q4_K


def _choose_gemma_type(name: str, layers: int) -> BlockType:
    """Rows of 640 hold no K-quants: llama.cpp's substitutes, as in the released 270M file."""
    if name == "token_embd.weight":
        return BlockType.Q8_0
    more = _has_more_bits(int(name.split(".")[1]), layers)
    if name.endswith("ffn_down.weight"):
        return BlockType.Q6_K if more else BlockType.Q4_K
    if name.endswith("attn_output.weight"):
        return BlockType.Q4_K
    return BlockType.Q8_0 if more and name.endswith("attn_v.weight") else BlockType.Q5_0


def _has_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's Q4_K_M rule: the first and last eighth, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
