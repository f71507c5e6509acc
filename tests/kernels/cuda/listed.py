"""The CUDA texts that also run on the CPU: every kernel of theirs has to run, or a test fails.

A line: architecture, the text, and what has to be included before it (after `muser.cuh`).
"""

LISTED: tuple[tuple[str, str, tuple[str, ...]], ...] = tuple(
    (architecture, text, before)
    for architecture in ("sm_80", "sm_90")
    for text, before in (
        ("place.cuh", ("blocks.cuh",)),
        ("quantise.cuh", ("blocks.cuh",)),
        ("matvec.cuh", ("blocks.cuh", "quantise.cuh")),
        ("batch.cuh", ("blocks.cuh", "quantise.cuh", "matvec.cuh")),
    )
)
