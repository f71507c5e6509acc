"""Mirrors of the structures that CUDA kernels take, one a kernel family, in the order of the texts;
those of projections are in `projection_structs.py`.

Pointers are plain addresses of the card. A launch passes one structure by value, so its size must
be the text's: the CPU shim of the tests compares them at every launch.
"""

import ctypes

from muser.devices.cuda.stepping import Faults, StepPointers

Pointer = ctypes.c_uint64
Int = ctypes.c_int32
Word = ctypes.c_uint32
Float = ctypes.c_float


class Append(ctypes.Structure):
    """`kv::Append`."""

    _fields_ = (
        ("k", Pointer),
        ("v", Pointer),
        ("k_cache", Pointer),
        ("v_cache", Pointer),
        ("v_steps", Pointer),
        ("step", StepPointers),
        ("faults", Faults),
        ("kv_heads", Int),
        ("dim", Int),
        ("capacity", Int),
    )


class CopyRows(ctypes.Structure):
    """`kv::Copy`."""

    _fields_ = (
        ("k", Pointer),
        ("v", Pointer),
        ("k_cache", Pointer),
        ("v_cache", Pointer),
        ("v_steps", Pointer),
        ("faults", Faults),
        ("kv_heads", Int),
        ("dim", Int),
        ("capacity", Int),
        ("slot", Int),
        ("first", Int),
        ("count", Int),
    )


class Attend(ctypes.Structure):
    """`attention::Attend`."""

    _fields_ = (
        ("q", Pointer),
        ("gate", Pointer),
        ("out", Pointer),
        ("k", Pointer),
        ("v", Pointer),
        ("v_steps", Pointer),
        ("tile_out", Pointer),
        ("tile_sums", Pointer),
        ("claims", Pointer),
        ("step", StepPointers),
        ("faults", Faults),
        ("factor", Float),
        ("heads", Int),
        ("kv_heads", Int),
        ("dim", Int),
        ("q_bits", Int),
        ("capacity", Int),
        ("window", Int),
        ("places", Int),
    )


class Combine(ctypes.Structure):
    """`attention::Combine`."""

    _fields_ = (
        ("a", Attend),
        ("codes", Pointer),
        ("scales", Pointer),
        ("made", Pointer),
        ("together", Int),
        ("handed", Pointer),
    )


class Place(ctypes.Structure):
    """`Place` of `place.cuh`."""

    _fields_ = (
        ("source", Pointer),  # `from`
        ("to", Pointer),
        ("faults", Faults),
        ("first", ctypes.c_int64),
        ("outputs", Int),
        ("rows", Int),
        ("width", Int),
    )


class Norm(ctypes.Structure):
    """`rows::Norm` of `norms.cuh`."""

    _fields_ = (
        ("x", Pointer),
        ("other", Pointer),
        ("first_weight", Pointer),
        ("weight", Pointer),
        ("sum", Pointer),
        ("out", Pointer),
        ("step", StepPointers),
        ("faults", Faults),
        ("width", Int),
        ("held", Int),
        ("inverse", Float),
        ("first_eps", Float),
        ("eps", Float),
    )


class NormTiles(ctypes.Structure):
    """`NormTiles` of `norm_tiles.cuh`."""

    _fields_ = (("norm", Norm), ("tiles", Pointer), ("kind", Int), ("groups", Int))


class Elementwise(ctypes.Structure):
    """`Elementwise` of `rows.cuh`."""

    _fields_ = (
        ("x", Pointer),
        ("y", Pointer),
        ("out", Pointer),
        ("step", StepPointers),
        ("faults", Faults),
        ("width", Int),
        ("factor", Float),
        ("inverse", Float),
        ("scale", Float),
    )


class Embedding(ctypes.Structure):
    """`Embed` of `embed.cuh`."""

    _fields_ = (
        ("weight", Pointer),
        ("out", Pointer),
        ("step", StepPointers),
        ("faults", Faults),
        ("width", Int),
        ("groups", Int),
    )


class Heads(ctypes.Structure):
    """`Heads` of `heads.cuh`."""

    _fields_ = (
        ("q", Pointer),
        ("k", Pointer),
        ("v", Pointer),
        ("q_weight", Pointer),
        ("k_weight", Pointer),
        ("table", Pointer),
        ("q_out", Pointer),
        ("k_cache", Pointer),
        ("v_cache", Pointer),
        ("v_steps", Pointer),
        ("step", StepPointers),
        ("faults", Faults),
        ("heads", Int),
        ("kv_heads", Int),
        ("head_dim", Int),
        ("capacity", Int),
        ("normed", Int),
        ("rotated", Int),
        ("halves", Int),
        ("inverse", Float),
        ("eps", Float),
    )


class NormOfHeads(ctypes.Structure):
    """`HeadNorm` of `heads.cuh`."""

    _fields_ = (
        ("x", Pointer),
        ("weight", Pointer),
        ("out", Pointer),
        ("step", StepPointers),
        ("faults", Faults),
        ("heads", Int),
        ("head_dim", Int),
        ("inverse", Float),
        ("eps", Float),
    )


class Rotation(ctypes.Structure):
    """`Rope` of `heads.cuh`."""

    _fields_ = (
        ("x", Pointer),
        ("table", Pointer),
        ("out", Pointer),
        ("step", StepPointers),
        ("faults", Faults),
        ("heads", Int),
        ("head_dim", Int),
        ("rotated", Int),
    )


class Taking(ctypes.Structure):
    """`TakeRows` of `pick.cuh`."""

    _fields_ = (("rows", Pointer), ("step", StepPointers), ("width", Int))


class ArgmaxParts(ctypes.Structure):
    """`ArgmaxParts` of `pick.cuh`."""

    _fields_ = (("x", Pointer), ("parts", Pointer), ("step", StepPointers), ("width", Int))


class FirstOfParts(ctypes.Structure):
    """`Argmax` of `pick.cuh`."""

    _fields_ = (("parts", Pointer), ("ids", Pointer), ("step", StepPointers), ("count", Int))
