"""The CUDA texts that also run on the CPU: every kernel of theirs has to run, or a test fails.

A line: architectures, the text, and what has to be included before it (after `muser.cuh`).
"""

_TEXTS = (
    (("sm_80", "sm_90"), "place.cuh", ("blocks.cuh",)),
    (("sm_80", "sm_90"), "quantise.cuh", ("blocks.cuh",)),
    (("sm_80", "sm_90"), "matvec.cu", ()),
    (("sm_80", "sm_90"), "batch.cuh", ("blocks.cuh", "quantise.cuh", "matvec.cuh")),
    (("sm_80", "sm_90"), "tile_rows.cuh", ("tiles.cuh",)),
    (("sm_80", "sm_90"), "gemm.cuh", ("tiles.cuh",)),
    (("sm_90a",), "gemm90.cuh", ("tiles.cuh",)),
    (("sm_80", "sm_90a"), "kv.cuh", ()),
    (("sm_80", "sm_90a"), "attention_decode.cuh", ("kv.cuh",)),
    (("sm_80", "sm_90a"), "attention_prefill.cuh", ("kv.cuh",)),
    (("sm_90a",), "attention_wide.cuh", ("kv.cuh",)),
    (("sm_90a",), "rows.cuh", ()),
    (("sm_90a",), "heads.cuh", ("rows.cuh",)),
    (("sm_90a",), "embed.cuh", ("rows.cuh",)),
    (("sm_90a",), "pick.cuh", ()),
)
LISTED = tuple(
    (architecture, text, before)
    for architectures, text, before in _TEXTS
    for architecture in architectures
)
