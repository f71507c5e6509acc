"""The CUDA texts that also run on the CPU: every kernel of theirs has to run, or a test fails.

A line: architecture, the text, and what has to be included before it (after `muser.cuh`).
"""

LISTED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("sm_80", "tiles.cuh", ()),
    ("sm_80", "gemm.cuh", ("tiles.cuh",)),
    ("sm_90a", "gemm90.cuh", ("tiles.cuh", "gemm.cuh")),
)
