"""Every kernel of the CPU device in one table: what may stand on a tape, and under which symbol."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from muser.errors import DeviceError

BUCKETS = ("1", "4", "16", "chunk")
"""Row buckets: 1, 2-4, 5-16 rows, and a prefill chunk."""

QUANTISERS = ("quantise_32", "quantise_256", "grid_rows")
"""Rows for a projection; with a prefix, those of a normed row, or of a normed sum."""

BUCKETED = (
    "project_q8_0",
    "project_q4_0",
    "project_q4_1",
    "project_q5_0",
    "project_q5_1",
    "project_q4_k",
    "project_q5_k",
    "project_q6_k",
    "project_grid",
    *(f"{before}{name}" for before in ("", "norm_", "add_norm_") for name in QUANTISERS),
)

PLAIN = (
    "embed_q8_0",
    "embed_q4_0",
    "embed_q4_1",
    "embed_q5_0",
    "embed_q5_1",
    "embed_q4_k",
    "embed_q5_k",
    "embed_q6_k",
    "embed_f32",
    "embed_f16",
    "embed_bf16",
    "norm",
    "rope_interleaved",
    "rope_half_split",
    "kv_append",
    "attention",
    "sigmoid_gate",
    "silu_gate",
    "gelu_gate",
    "add",
    "scale",
    "softcap",
    "scale_softcap",
    "take_rows",
    "argmax",
)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One function of a library; `bucket` is the row bucket it is specialised for, if any."""

    name: str
    bucket: str | None

    @property
    def symbol(self) -> str:
        return f"muser_{self.name}" + ("" if self.bucket is None else f"_{self.bucket}")

    def label(self, isa: str) -> str:
        constants = [f"isa={isa}"] + ([] if self.bucket is None else [f"bucket={self.bucket}"])
        return f"{self.name}[{','.join(constants)}]"


def _table() -> Mapping[tuple[str, str], Pipeline]:
    table = {(name, bucket): Pipeline(name, bucket) for name in BUCKETED for bucket in BUCKETS}
    for name in PLAIN:
        plain = Pipeline(name, None)
        table |= {(name, bucket): plain for bucket in BUCKETS}
    return MappingProxyType(table)


REGISTRY = _table()
"""(kernel name, row bucket) to its pipeline."""


def pipeline(name: str, bucket: str) -> Pipeline:
    """Raises `DeviceError` for a name that the device does not have."""
    found = REGISTRY.get((name, bucket))
    if found is None:
        raise DeviceError(
            f"The CPU device has no kernel {name!r} for the row bucket {bucket!r}.",
            "This is a defect of the lowering table; please report it.",
        )
    return found


def bucket_of(rows: int) -> str:
    """The row bucket that serves a step of `rows` rows."""
    if rows <= 1:
        return "1"
    return "4" if rows <= 4 else "16" if rows <= 16 else "chunk"
