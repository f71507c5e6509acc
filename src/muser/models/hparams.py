"""Typed, bounded reading of a file's hyperparameters; what cannot be honoured is refused here."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muser.errors import ModelError

MOST_LAYERS = 4096
MOST_WIDTH = 1 << 20
MOST_SCALING = 1 << 16
LEAST_NUMBER, MOST_NUMBER = 2.0**-126, float.fromhex("0x1.fffffep+127")  # normal f32


@dataclass(frozen=True, slots=True)
class Keys:
    """The metadata of one architecture: `keys.integer("block_count")` reads `llama.block_count`."""

    metadata: Mapping[str, object]
    architecture: str

    def name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def get(self, key: str) -> object | None:
        return self.metadata.get(self.name(key))

    def integer(self, key: str, default: int | None = None, *, most: int = MOST_WIDTH) -> int:
        """A whole number in 1…most. Raises `ModelError` if it is missing or out of range."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ModelError(
                f"{self.name(key)} is {_shown(value)}, but must be a whole number in 1…{most}.",
                "Convert the model again with a current converter.",
            )
        return value

    def number(
        self, key: str, default: float | None = None, *, least: float = LEAST_NUMBER
    ) -> float:
        """A positive number that f32 holds, and 1 over it too. Raises `ModelError` otherwise."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            value = None
        if value is None or not least <= value <= MOST_NUMBER:
            raise ModelError(
                f"{self.name(key)} is {_shown(self.get(key))}, but must be a number from"
                f" {least:g} to {MOST_NUMBER:g}.",
                "Convert the model again with a current converter.",
            )
        return float(value)

    def sliding_layers(self, layers: int, default: int | None = None) -> tuple[bool, ...]:
        """Which layers have a window: a period n (layer i slides iff i mod n < n − 1) or a list."""
        value = self.get("attention.sliding_window_pattern")
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return tuple(value == 0 or i % value < value - 1 for i in range(layers))
        if isinstance(value, np.ndarray) and value.shape == (layers,) and _are_flags(value):
            return tuple(bool(item) for item in value)
        raise ModelError(
            f"{self.name('attention.sliding_window_pattern')} is {_shown(value)}: which layers"
            " have a window is not known.",
            f"A period or a list of {layers} booleans is needed; convert the model again.",
        )


def _are_flags(values: NDArray[np.generic]) -> bool:
    return values.dtype.kind in "biu" and bool(np.isin(values, (0, 1)).all())


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What every decoder here shares; widths in elements."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    vocabulary: int
    eps: float

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


def read_dimensions(keys: Keys) -> Dimensions:
    """Dimensions of a dense decoder. Raises `ModelError` with the key that is wrong."""
    width = keys.integer("embedding_length")
    heads = keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    head_dim = keys.integer("attention.key_length", max(1, width // heads))
    value_dim = keys.integer("attention.value_length", head_dim)
    if heads % kv_heads or value_dim != head_dim or head_dim % 2 or head_dim > 256:
        raise ModelError(
            f"{heads} query heads over {kv_heads} KV heads of {head_dim} and {value_dim}"
            " elements are not supported.",
            "Head counts must divide, K and V heads be of one even size up to 256.",
        )
    return Dimensions(
        layers=keys.integer("block_count", most=MOST_LAYERS),
        width=width,
        ffn=keys.integer("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=keys.integer("context_length", most=1 << 24),
        vocabulary=read_vocabulary(keys),
        eps=keys.number("attention.layer_norm_rms_epsilon"),
    )


def read_vocabulary(keys: Keys) -> int:
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    known = len(tokens) if hasattr(tokens, "__len__") else None
    return keys.integer("vocab_size", known, most=1 << 22)


def read_rotated(keys: Keys, head_dim: int) -> int:
    """How many elements of a head rotate, in pairs: all of them unless the file says fewer."""
    rotated = keys.integer("rope.dimension_count", head_dim, most=head_dim)
    if rotated % 2:
        raise ModelError(
            f"{keys.name('rope.dimension_count')} is {rotated}, but elements rotate in pairs.",
            "Convert the model again with a current converter.",
        )
    return rotated


def read_base(keys: Keys, key: str, default: float) -> float:
    """A rotation's base. Below 1 the angles would grow from pair to pair until they overflow."""
    return keys.number(key, default, least=1.0)


def refuse_rope_scaling(keys: Keys) -> None:
    """For architectures without linear scaling (`rope_freqs.weight` is no scaling: no key)."""
    kind, factor = _read_scaling(keys)
    unscaled = _is_one_of(kind, "none") or (kind is None and _is_one_of(factor, None, 1))
    if not unscaled:
        raise _unsupported_scaling(keys, kind, factor)


def read_linear_scale(keys: Keys) -> float:
    """What multiplies the angles: 1 over the factor of linear scaling, in f32 as in llama.cpp."""
    kind, factor = _read_scaling(keys)
    if _is_one_of(kind, "none") or (_is_one_of(kind, None, "linear") and factor is None):
        return 1.0
    linear = _is_one_of(kind, None, "linear") and not isinstance(factor, bool)
    if linear and isinstance(factor, int | float) and 1 <= factor <= MOST_SCALING:
        return float(np.float32(1) / np.float32(factor))
    raise _unsupported_scaling(keys, kind, factor)


def _read_scaling(keys: Keys) -> tuple[object | None, object | None]:
    """Kind and factor; a factor of 0 means none. The second key is the one of old converters."""
    factors = [keys.get(f"rope.{key}") for key in ("scaling.factor", "scale_linear")]
    factor = next((f for f in factors if not _is_one_of(f, None, 0)), None)
    return keys.get("rope.scaling.type"), factor


def _unsupported_scaling(keys: Keys, kind: object, factor: object) -> ModelError:
    return ModelError(
        f"{keys.name('rope.scaling.type')} is {_shown('linear' if kind is None else kind)}"
        f" (factor {_shown(factor)}), which is not supported.",
        "Use a file without RoPE scaling; a guess would give wrong text.",
    )


def refuse_experts(keys: Keys) -> None:
    count = keys.get("expert_count")
    if not _is_one_of(count, None, 0):
        raise ModelError(
            f"{keys.name('expert_count')} is {_shown(count)}: mixtures of experts are not"
            " supported.",
            "Use a dense model.",
        )


def _is_one_of(value: object, *allowed: object) -> bool:
    """Equality that an array in the place of a number cannot disturb."""
    return any(value == item for item in allowed if not isinstance(value, np.ndarray))
