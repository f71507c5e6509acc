"""The CUDA units that also run on the CPU: every kernel of theirs has to run, or a test fails."""

LISTED = {
    "rows": ("sm_90a",),
    "primitives": ("sm_90a",),
    "project": ("sm_80", "sm_90"),
    "matvec": ("sm_80", "sm_90"),
    "batch": ("sm_80", "sm_90"),
    "attention": ("sm_80", "sm_90a"),
    "gemm": ("sm_80", "sm_90"),
    "attention90": ("sm_90a",),
    "gemm90": ("sm_90a",),
}
"""A unit of the registry, and the architectures as which its kernels run."""
