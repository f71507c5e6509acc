"""Every kernel of the CUDA device in one table, and the units of text that hold them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Unit:
    """A text that is compiled by itself, and its kernels. `only`: the architectures it is for."""

    text: str
    kernels: tuple[str, ...]
    only: tuple[str, ...] = ()

    def serves(self, architecture: str) -> bool:
        return not self.only or architecture in self.only


QUANTISED = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k")
FLOATS = ("f32", "f16", "bf16")
TILES = ("k", "32", "grid")
ROWS = (
    "rms_norm", "add_norm", "norm_add_norm", "head_norm", "heads", "rope_interleaved",
    "rope_half_split", "sigmoid_gate", "silu_gate", "gelu_gate", "add", "scale", "softcap",
    "scale_softcap", "take_rows", "argmax_parts", "argmax", "read_through",
    *(f"embed_{name}" for name in (*QUANTISED, *FLOATS)),
)  # fmt: skip
PROJECT = (
    "quantise_256", "quantise_32", "grid_rows",
    "norm_quantise_256", "norm_quantise_32", "norm_grid_rows",
    *(f"place_{name}" for name in (*QUANTISED, *FLOATS)),
)  # fmt: skip
MATVEC = tuple(f"matvec_{form}_{rows}" for form in ("256", "32", "grid") for rows in (1, 4))
ATTENTION = (
    "kv_append", "kv_import", "kv_export", "decode_combine", "combine_256", "combine_more_256",
    "combine_most_256", "combine_turns_256", "decode_one_64", "decode_one_128",
    "decode_deep_64", "decode_deep_128",
    *(f"{name}_{head}" for name in ("decode_tiles", "prefill") for head in (64, 128, 256)),
)  # fmt: skip
GEMM = (
    *(f"{what}_tiles_{form}" for what in ("quantise", "gated", "norm") for form in TILES),
    *(f"gemm_{name}" for name in (*QUANTISED, "grid")),
)  # fmt: skip
CHECKS = tuple(
    f"check_{name}"
    for name in (
        "fma", "rne", "int32", "half", "from_half", "divide", "inverse_root", "exp",
        "exp2_fraction",
    )
)  # fmt: skip

UNITS: Mapping[str, Unit] = MappingProxyType(
    {
        "rows": Unit("rows.cu", ROWS),
        "primitives": Unit("primitives.cu", CHECKS),
        "project": Unit("project.cu", PROJECT),
        "matvec": Unit("matvec.cu", MATVEC),
        "batch": Unit("batch.cu", ("batch_256", "batch_32", "batch_grid")),
        "attention": Unit("attention.cu", ATTENTION),
        "gemm": Unit("gemm.cu", GEMM),
        "attention90": Unit("attention90.cu", ("prefill_wide_64", "prefill_wide_128"), ("sm_90a",)),
        "gemm90": Unit("gemm90.cu", ("gemm_wide", "gemm_gated"), ("sm_90a",)),
    }
)
CUDA_KERNELS: Mapping[str, str] = MappingProxyType(
    {kernel: name for name, unit in UNITS.items() for kernel in unit.kernels}
)
"""Kernel name to the unit that holds it."""


def units_of(architecture: str) -> tuple[str, ...]:
    """The units that are compiled for an architecture."""
    return tuple(name for name, unit in UNITS.items() if unit.serves(architecture))
