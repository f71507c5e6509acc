"""The chunk bucket through the shim: weights in their tiles, rows quantised and multiplied."""

import ctypes

import numpy as np

from muser.formats import BlockType

from ..bench import FLOATS
from .shim import address, device, poisoned

NO_FAULT = 2**64 - 1
TILES = {256: ("k", 37376, 256), 32: ("32", 40960, 256), 1: ("grid", 33280, 128)}
"""Elements of a block to: name of the tile, its bytes, elements of a group."""

STAGES = {
    BlockType.Q4_K: (128, 37120),
    BlockType.Q5_K: (128, 41216),
    BlockType.Q6_K: (128, 45312),
    BlockType.Q8_0: (128, 27648),
    BlockType.Q4_0: (128, 38912),
    BlockType.Q4_1: (128, 43008),
    BlockType.Q5_0: (128, 43008),
    BlockType.Q5_1: (128, 47104),
}
GRID_STAGE = (64, 35072)


class TileRows(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("tiles", ctypes.c_void_p),
        ("count", ctypes.c_void_p),
        ("width", ctypes.c_int),
        ("groups", ctypes.c_int),
    )


class ChunkPart(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("entry", ctypes.c_uint64),
        ("outputs", ctypes.c_int),
        ("format", ctypes.c_int),
    )


class ChunkGemm(ctypes.Structure):
    _fields_ = (
        ("part", ChunkPart * 4),
        ("tiles", ctypes.c_void_p),
        ("count", ctypes.c_void_p),
        ("faults", ctypes.c_void_p),
        ("parts", ctypes.c_int),
        ("groups", ctypes.c_int),
    )


class Chunk:
    """Rows in their tiles; `room` rows are launched for, `len(x)` are there."""

    def __init__(self, shim, kind, x, room=None, seed=0):
        self.shim, self.seed, self.n, width = shim, seed, len(x), x.shape[1]
        name, size, group = TILES[kind.elements]
        self.groups, self.room = -(-width // group), -(-(room or self.n) // 128)
        self.x, self.count = device(x), device(np.array([self.n], np.int32))
        self.tiles = poisoned((self.room * self.groups * size,), np.uint8)
        self.faults = device(np.array([NO_FAULT], np.uint64))
        addresses = [address(a) for a in (self.x, self.tiles, self.count)]
        rows = TileRows(*addresses, width, self.groups)
        shim.launch(
            f"quantise_tiles_{name}", (self.groups, self.room * 16), 256, bytes(rows), seed=seed
        )

    def project(self, kind, weights, outputs):
        """`weights`: the tiles of each part; f32 `[room, outputs]` of each part."""
        width, stage = GRID_STAGE if kind in FLOATS else STAGES[kind]
        outs = [poisoned((self.room * 128, count), np.float32) for count in outputs]
        argument = self.gemm(weights, outputs, outs)
        name = "grid" if kind in FLOATS else kind.name.lower()
        grid = (2 * self.room, sum(-(-count // width) for count in outputs))
        self.shim.launch(
            f"gemm_{name}", grid, 2 * width, bytes(argument), shared=2 * stage, seed=self.seed
        )
        return outs

    def gemm(self, weights, outputs, outs):
        argument = ChunkGemm(parts=len(outs), groups=self.groups)
        for i, (tiles, count, out) in enumerate(zip(weights, outputs, outs, strict=True)):
            argument.part[i] = ChunkPart(address(tiles), address(out), i + 7, count, 0)
        argument.tiles, argument.count = address(self.tiles), address(self.count)
        argument.faults = address(self.faults)
        return argument

    def fault(self):
        """(entry, row) of the first fault, or None."""
        word = int(self.faults[0])
        return None if word == NO_FAULT else (word >> 32, word & 0xFFFFFFFF)


FORMATS = (BlockType.Q4_K, BlockType.Q5_K, BlockType.Q6_K)
GROUP_BYTES = (144, 176, 208)


class WideGemm(ctypes.Structure):
    _fields_ = (
        ("part", ChunkPart * 4),
        ("tiles", ctypes.c_void_p),
        ("count", ctypes.c_void_p),
        ("faults", ctypes.c_void_p),
        ("carry", ctypes.c_void_p),
        ("flags", ctypes.c_void_p),
        ("entry", ctypes.c_uint64),
        ("parts", ctypes.c_int),
        ("groups", ctypes.c_int),
        ("stages", ctypes.c_int),
        ("stage_bytes", ctypes.c_int),
        ("gated", ctypes.c_int),
        ("spare", ctypes.c_int),
    )


def wide(chunk, kinds, weights, outputs, processors, gated=0):
    """`gemm_wide` on so many multiprocessors: f32 `[room, outputs]` of each part."""
    outs = [poisoned((chunk.room * 128, count), np.float32) for count in outputs]
    plain = chunk.gemm(weights, outputs, outs)
    argument = WideGemm(parts=len(outs), groups=chunk.groups, gated=gated, entry=99)
    for i, kind in enumerate(kinds):
        argument.part[i] = plain.part[i]
        argument.part[i].format = FORMATS.index(kind)
    largest = max(GROUP_BYTES[FORMATS.index(kind)] for kind in kinds)
    argument.stage_bytes = -(-(37376 + 128 * largest) // 1024) * 1024
    argument.stages = 4 if largest == 144 else 3
    argument.tiles, argument.count, argument.faults = plain.tiles, plain.count, plain.faults
    carry = poisoned((processors, 64, 256), np.float32)
    flags = device(np.zeros(processors, np.uint32))
    argument.carry, argument.flags = address(carry), address(flags)
    shared = argument.stages * argument.stage_bytes + 1024
    name = "gemm_gated" if gated else "gemm_wide"
    chunk.shim.launch(name, processors, 384, bytes(argument), shared=shared, seed=chunk.seed)
    assert not flags.any()
    return outs
