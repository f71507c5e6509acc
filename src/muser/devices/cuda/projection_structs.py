"""Arguments of the kernels of projections; see `structs.py`."""

import ctypes

from muser.devices.cuda.stepping import Faults
from muser.devices.cuda.structs import Float, Int, Pointer, Word


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
        ("copies", Int),
        ("pass_tiles", Int),
        ("slots", Int),
        ("table", Int),
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
