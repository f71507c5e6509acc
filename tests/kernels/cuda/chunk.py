"""The chunk bucket through the shim: weights placed by NumPy, rows quantised and multiplied."""

import ctypes

import numpy as np

from muser.formats import BlockType
from muser.graph import oracle

from ..bench import FLOATS
from .shim import device, poisoned, tensor_map

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
        ("scales", ctypes.c_void_p),
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


def padded(array, rows=128):
    """Zeros after the last row, up to a multiple of `rows`."""
    more = -len(array) % rows
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])


def placed(kind, raw, width):
    """Device layout of weight rows: codes `[outputs padded to 128, groups, bytes]`, and scales."""
    if kind in FLOATS:
        codes, steps = oracle.weight_grid(kind, raw)
        scales = np.ldexp(np.float32(1), steps.astype(np.int32)).astype(np.float32)
        return device(padded(codes.astype(np.int16))), device(padded(scales))
    blocks = raw.reshape(len(raw), -1, kind.bytes)
    if kind is BlockType.Q6_K:
        codes = np.concatenate([blocks[..., 192:208], blocks[..., :192]], axis=2)
        return device(padded(codes)), device(padded(np.ascontiguousarray(blocks[..., 208:])))
    if kind.elements == 32:
        blocks = _groups_of_eight(kind, blocks)
    return device(padded(np.ascontiguousarray(blocks))), None


def _groups_of_eight(kind, blocks):
    blocks = np.pad(blocks, ((0, 0), (0, -blocks.shape[1] % 8), (0, 0)))
    eight = blocks.reshape(len(blocks), -1, 8, kind.bytes)
    codes = 32 if kind is BlockType.Q8_0 else 16
    ends = [2, *((4,) if kind.name.endswith("1") else ()), kind.bytes - codes, kind.bytes]
    parts, start = [], 0
    for end in ends:
        parts.append(eight[..., start:end].reshape(*eight.shape[:2], -1))
        start = end
    return np.concatenate(parts, axis=2)


class Chunk:
    """Rows in their tiles; `room` rows are launched for, `len(x)` are there."""

    def __init__(self, shim, kind, x, room=None, seed=0):
        self.shim, self.seed, self.n, width = shim, seed, len(x), x.shape[1]
        name, size, group = TILES[kind.elements]
        self.groups, self.room = -(-width // group), -(-(room or self.n) // 128)
        self.x, self.count = device(x), device(np.array([self.n], np.int32))
        self.tiles = poisoned((self.room * self.groups * size,), np.uint8)
        self.faults = device(np.array([NO_FAULT], np.uint64))
        addresses = [a.ctypes.data for a in (self.x, self.tiles, self.count)]
        rows = TileRows(*addresses, width, self.groups)
        shim.launch(
            f"quantise_tiles_{name}", (self.groups, self.room * 16), 256, bytes(rows), seed=seed
        )

    def project(self, kind, weights, outputs):
        """`weights`: what `placed` gave for each part; f32 `[room, outputs]` of each part."""
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
        for i, ((codes, scales), count, out) in enumerate(zip(weights, outputs, outs, strict=True)):
            extra = 0 if scales is None else scales.ctypes.data
            argument.part[i] = ChunkPart(codes.ctypes.data, extra, out.ctypes.data, i + 7, count, 0)
        argument.tiles, argument.count = self.tiles.ctypes.data, self.count.ctypes.data
        argument.faults = self.faults.ctypes.data
        return argument

    def fault(self):
        """(entry, row) of the first fault, or None."""
        word = int(self.faults[0])
        return None if word == NO_FAULT else (word >> 32, word & 0xFFFFFFFF)


FORMATS = (BlockType.Q4_K, BlockType.Q5_K, BlockType.Q6_K)


class WideGemm(ctypes.Structure):
    _fields_ = (
        ("map", ctypes.c_uint8 * 512),
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
        ("spare", ctypes.c_int * 7),  # to a multiple of 64, as the maps want it
    )


def wide(chunk, kinds, weights, outputs, processors, gated=0):
    """`gemm_wide` on so many multiprocessors: f32 `[room, outputs]` of each part."""
    outs = [poisoned((chunk.room * 128, count), np.float32) for count in outputs]
    plain = chunk.gemm(weights, outputs, outs)
    argument = WideGemm(parts=len(outs), groups=chunk.groups, gated=gated, entry=99)
    for i, (kind, (codes, _)) in enumerate(zip(kinds, weights, strict=True)):
        argument.part[i] = plain.part[i]
        argument.part[i].format = FORMATS.index(kind)
        rows = codes.reshape(len(codes), -1)
        box = tensor_map(rows, codes.shape[2], 64, 0)
        argument.map[128 * i : 128 * (i + 1)] = (ctypes.c_uint8 * 128).from_buffer_copy(box)
    largest = max(codes.shape[2] for codes, _ in weights)
    argument.stage_bytes = -(-(37376 + 128 * largest) // 1024) * 1024
    argument.stages = 4 if largest == 144 else 3
    argument.tiles, argument.count, argument.faults = plain.tiles, plain.count, plain.faults
    carry = poisoned((processors, 64, 256), np.float32)
    flags = device(np.zeros(processors, np.uint32))
    argument.carry, argument.flags = carry.ctypes.data, flags.ctypes.data
    shared = argument.stages * argument.stage_bytes + 1024
    name = "gemm_gated" if gated else "gemm_wide"
    chunk.shim.launch(name, processors, 384, bytes(argument), shared=shared, seed=chunk.seed)
    assert not flags.any()
    return outs
