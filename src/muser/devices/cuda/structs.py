"""Mirrors of the structures that CUDA kernels take, one a kernel family, in the order of the texts.

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


class Source(ctypes.Structure):
    """`Source` of `quantise.cuh`: what a projection's rows are made of."""

    _fields_ = (
        ("codes", Pointer),
        ("scales", Pointer),
        ("row", Pointer),
        ("other", Pointer),
        ("branch_weight", Pointer),
        ("weight", Pointer),
        ("sum", Pointer),
        ("take", Pointer),
        ("branch_entry", ctypes.c_uint64),
        ("sum_entry", ctypes.c_uint64),
        ("norm_entry", ctypes.c_uint64),
        ("width", Int),
        ("kind", Int),
        ("branch_norm", Int),
        ("inverse", Float),
        ("branch_eps", Float),
        ("eps", Float),
    )


class Quantise(ctypes.Structure):
    """`Quantise` of `quantise.cuh`."""

    _fields_ = (
        ("source", Source),
        ("codes", Pointer),
        ("scales", Pointer),
        ("count", Pointer),
        ("faults", Pointer),
        ("made", Pointer),
        ("together", Int),
        ("held", Int),
    )


class Part(ctypes.Structure):
    """`Part` of `matvec.cuh`: one weight of a merged projection."""

    _fields_ = (
        ("weights", Pointer),
        ("out", Pointer),
        ("entry", ctypes.c_uint64),
        ("outputs", Int),
        ("format", Int),
        ("base", Word),
        ("size", Word),
        ("by_cost", Word),
        ("spare", Word),
    )


class Split(ctypes.Structure):
    """`Split` of `matvec.cuh`: what thread blocks share out."""

    _fields_ = (
        ("each", Word),
        ("rest", Word),
        ("by_full", Word),
        ("full", Word),
        ("last", Word),
        ("total", Word),
    )


PARTS = 4


class Matvec(ctypes.Structure):
    """`Matvec` of `matvec.cuh`."""

    _fields_ = (
        ("parts", Part * PARTS),
        ("source", Source),
        ("out", Pointer),
        ("act_entry", ctypes.c_uint64),
        ("scale_entry", ctypes.c_uint64),
        ("cap_entry", ctypes.c_uint64),
        ("faults", Pointer),
        ("count", Pointer),
        ("made", Pointer),
        ("split", Split),
        ("makers", Word),
        ("by_units", Word),
        ("pace", Word),
        ("scale", Float),
        ("cap", Float),
        ("inverse_cap", Float),
        ("epilogue", Int),
        ("stages", Int),
        ("stage_bytes", Int),
        ("slice", Int),
        ("pass_tiles", Int),
        ("slots", Int),
        ("handed", Pointer),
    )


class TileRows(ctypes.Structure):
    """`TileRows` of `tile_rows.cuh`."""

    _fields_ = (
        ("x", Pointer),
        ("tiles", Pointer),
        ("count", Pointer),
        ("width", Int),
        ("groups", Int),
    )


class GatedTiles(ctypes.Structure):
    """`GatedTiles` of `tile_rows.cuh`."""

    _fields_ = (("rows", TileRows), ("up", Pointer), ("faults", Faults), ("act", Int))


class ChunkPart(ctypes.Structure):
    """`ChunkPart` of `gemm.cuh`."""

    _fields_ = (
        ("weights", Pointer),
        ("out", Pointer),
        ("entry", ctypes.c_uint64),
        ("outputs", Int),
        ("format", Int),
    )


class ChunkGemm(ctypes.Structure):
    """`ChunkGemm` of `gemm.cuh`."""

    _fields_ = (
        ("part", ChunkPart * PARTS),
        ("tiles", Pointer),
        ("count", Pointer),
        ("faults", Pointer),
        ("parts", Int),
        ("groups", Int),
    )


class WideGemm(ctypes.Structure):
    """`WideGemm` of `gemm90.cuh`."""

    _fields_ = (
        ("part", ChunkPart * PARTS),
        ("tiles", Pointer),
        ("count", Pointer),
        ("faults", Pointer),
        ("carry", Pointer),
        ("flags", Pointer),
        ("entry", ctypes.c_uint64),
        ("parts", Int),
        ("groups", Int),
        ("stages", Int),
        ("stage_bytes", Int),
        ("gated", Int),
        ("spare", Int),
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
