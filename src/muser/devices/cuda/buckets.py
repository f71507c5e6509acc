"""Row buckets of the CUDA device: which ones a runner needs, and how many rows each has."""

from muser.devices.device import Limits
from muser.kernels import BUCKETS, bucket_of

FEW, CHUNK = BUCKETS[:-1], BUCKETS[-1]
"""Few rows read weights once each, and their projections do what stands around them too; a chunk
goes through matrix units.
"""
MOST_FEW = int(FEW[-1])
HEAD_ROWS = 64
"""Rows whose logits are made at once; a step that wants more plays its tail again."""


def buckets_of(rows: int) -> tuple[str, ...]:
    """The buckets that steps of one row up to `rows` fall into."""
    return BUCKETS[: BUCKETS.index(bucket_of(rows)) + 1]


def rows_of(bucket: str, limits: Limits) -> int:
    """The most rows that a step of a bucket has."""
    return limits.chunk if bucket == CHUNK else min(int(bucket), limits.chunk)


def rows_together(bucket: str, block: int) -> int:
    """Rows quantised in blocks of so many elements whose groups lie side by side, for the next
    projection (`quantise.cuh`).
    """
    return MOST_FEW if bucket == FEW[-1] and block == 256 else 1


def head_rows(limits: Limits) -> int:
    """The most rows that a tail has."""
    return min(HEAD_ROWS, limits.chunk)
