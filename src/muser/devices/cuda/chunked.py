"""Rules of projections of many rows: quantised tiles, then matrix units."""

import ctypes
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from muser.devices.cuda.buckets import CHUNK
from muser.devices.cuda.card import Address
from muser.devices.cuda.layouts import GROUP_BYTES, PAD
from muser.devices.cuda.lowering import Lowering
from muser.devices.cuda.projecting import Member, by_form, members_of, types_of
from muser.devices.cuda.structs import ChunkGemm, ChunkPart, TileRows, WideGemm
from muser.formats import FLOATS, BlockType
from muser.graph import Activation, GatedAct, Project
from muser.graph.arithmetic import GRID_BLOCK
from muser.kv import round_up

WIDE_KERNEL = "gemm_wide"
TILE_ROWS = 128
TILE_BYTES: Mapping[int, int] = MappingProxyType({256: 37_376, 32: 40_960, GRID_BLOCK: 33_280})
TILERS: Mapping[int, str] = MappingProxyType(
    {256: "quantise_tiles_k", 32: "quantise_tiles_32", GRID_BLOCK: "quantise_tiles_grid"}
)
STAGES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "q4_k": (128, 37_120),
        "q5_k": (128, 41_216),
        "q6_k": (128, 45_312),
        "q8_0": (128, 27_648),
        "q4_0": (128, 38_912),
        "q4_1": (128, 43_008),
        "q5_0": (128, 43_008),
        "q5_1": (128, 47_104),
        "grid": (64, 35_072),
    }
)
"""Of a GEMM of `gemm.cuh`: outputs of a thread block, and bytes of one of its two stages."""


def many_rows(low: Lowering, op: Project, gate: GatedAct | None = None) -> None:
    """For each block size of the group one launch that makes tiles, then one for all of it where
    the card has warpgroups, else one for each format.
    """
    for block, members in by_form(members_of(low, op)).items():
        tiles = _tiles(low, op, block)
        if block == 256 and is_wide(low):
            _wide(low, members, tiles, gate)
            continue
        for kind, some in _by_kernel(members).items():
            _gemm(low, kind, some, tiles)


def is_wide(low: Lowering) -> bool:
    """Whether projections by K-quants go through warpgroups."""
    return low.bucket == CHUNK and low.shared.pipelines.has(WIDE_KERNEL)


def gates(low: Lowering, op: Project) -> bool:
    """Whether one launch does a gated activation too."""
    blocks = {member.placed.layout.block for member in members_of(low, op)}
    return is_wide(low) and blocks == {256}


def _by_kernel(members: Sequence[Member]) -> Mapping[str, list[Member]]:
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(_kernel_of(member.placed.layout.type), []).append(member)
    return groups


def _kernel_of(kind: BlockType) -> str:
    return "grid" if kind in FLOATS else kind.name.lower()


def band_room(width: int, block: int, rows: int) -> Mapping[str, int]:
    """Quantised tiles of many rows (`tiles.cuh`), in bands of `TILE_ROWS`."""
    bands = -(-rows // TILE_ROWS)
    return {f"tiles {block}": bands * _groups(width, block) * TILE_BYTES[block]}


def _groups(width: int, block: int) -> int:
    return -(-width // (GRID_BLOCK if block == GRID_BLOCK else 256))


def _tiles(low: Lowering, op: Project, block: int) -> Address:
    width = low.width(op.source)
    groups, bands = _groups(width, block), -(-low.rows // TILE_ROWS)
    (where,) = low.shared.rooms(band_room(width, block, low.rows))
    low.entry_of(f"{op.source} in blocks of {block}")
    args = TileRows(low.row(op.source), where, low.count_at, width, groups)
    low.launch(TILERS[block], (groups, bands * 16), 256, args)
    return where


def _gemm(low: Lowering, kind: str, members: Sequence[Member], tiles: Address) -> None:
    layout = members[0].placed.layout
    outputs, stage = STAGES[kind]
    args = ChunkGemm(tiles=tiles, count=low.count_at, faults=low.step.back)
    args.parts, args.groups = len(members), layout.groups
    for i, member in enumerate(members):
        args.part[i] = _chunk_part(low, member)
    blocks = sum(-(-member.placed.layout.outputs // outputs) for member in members)
    low.launch(
        f"gemm_{kind}",
        (2 * -(-low.rows // TILE_ROWS), blocks),
        2 * outputs,
        args,
        shared=2 * stage,
        served=types_of(members),
        tensors=tuple(member.placed.name for member in members),
    )


WIDE_FORMATS: Mapping[BlockType, int] = MappingProxyType(
    {BlockType.Q4_K: 0, BlockType.Q5_K: 1, BlockType.Q6_K: 2}
)
WIDE_ROWS, WIDE_TAIL, CARRY = 64, 1024, 64 * 256 * 4  # of a box; bytes of shared memory; of a block


def carry_rooms(grid: int) -> Mapping[str, int]:
    """What thread blocks that share a tile hand on, and a flag of each (`gemm90.cuh`)."""
    return {"carry": grid * CARRY, "flags": 4 * grid}


def _wide(low: Lowering, members: Sequence[Member], tiles: Address, gate: GatedAct | None) -> None:
    layout, grid = members[0].placed.layout, low.processors
    largest = max(GROUP_BYTES[member.placed.layout.type] for member in members)
    args = WideGemm(tiles=tiles, count=low.count_at, faults=low.step.back)
    args.parts, args.groups = len(members), layout.groups
    args.carry, args.flags = low.shared.rooms(carry_rooms(grid))
    for i, member in enumerate(members):
        args.part[i] = _chunk_part(low, member, WIDE_FORMATS[member.placed.layout.type])
        args.map[i] = _map_of(low, member)
    if gate is not None:
        args.gated = 1 if gate.activation is Activation.SILU else 2
        args.part[0].out, args.entry = low.row(gate.target), low.entry_of(gate.node)
    stage = round_up(TILE_BYTES[256] + 128 * largest, 1024)
    args.stage_bytes, args.stages = stage, 4 if largest == GROUP_BYTES[BlockType.Q4_K] else 3
    low.launch(
        WIDE_KERNEL if gate is None else "gemm_gated",
        (grid,),
        384,
        args,
        shared=args.stages * stage + WIDE_TAIL,
        served=types_of(members),
        tensors=tuple(member.placed.name for member in members),
    )


def _chunk_part(low: Lowering, member: Member, number: int = 0) -> ChunkPart:
    placed = member.placed
    entry = low.entry_of(member.node)
    return ChunkPart(placed.codes, placed.plane, member.out, entry, placed.layout.outputs, number)


def _map_of(low: Lowering, member: Member) -> ctypes.Array[ctypes.c_uint64]:
    layout = member.placed.layout
    group = GROUP_BYTES[layout.type]
    shape = round_up(layout.outputs, PAD), layout.groups * group
    words = low.shared.card.tensor_map(member.placed.codes, shape, (WIDE_ROWS, group))
    return (ctypes.c_uint64 * 16).from_buffer_copy(words)
