"""Rules of projections of many rows: quantised tiles, then matrix units."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from muser.devices.cuda.buckets import CHUNK
from muser.devices.cuda.card import Address
from muser.devices.cuda.layouts import GROUP_BYTES
from muser.devices.cuda.lowering import Lowering
from muser.devices.cuda.norms import LANES, held_rows, kind_of, norm_of, row_bytes
from muser.devices.cuda.projecting import Member, by_form, members_of, types_of
from muser.devices.cuda.projection_structs import (
    ChunkGemm,
    ChunkPart,
    GatedTiles,
    TileRows,
    WideGemm,
)
from muser.devices.cuda.sources import Before
from muser.devices.cuda.structs import NormTiles
from muser.formats import FLOATS, BlockType
from muser.graph import Activation, GatedAct, Project
from muser.graph.arithmetic import GRID_BLOCK
from muser.kv import round_up

WIDE_KERNEL = "gemm_wide"
TILE_ROWS = 128
TILE_BYTES: Mapping[int, int] = MappingProxyType({256: 37_376, 32: 40_960, GRID_BLOCK: 33_280})
FORMS: Mapping[int, str] = MappingProxyType({256: "k", 32: "32", GRID_BLOCK: "grid"})
"""Elements of a block to the end of a kernel's name: what it quantises to."""
ACTIVATIONS: Mapping[Activation, int] = MappingProxyType({Activation.SILU: 1, Activation.GELU: 2})
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


Front: TypeAlias = Before | GatedAct
"""What stands in front of a projection and makes its rows, straight into tiles."""


def many_rows(low: Lowering, op: Project, front: Front, gate: GatedAct | None = None) -> None:
    """For each block size of the group one launch that makes tiles, of what stands in front of the
    projection too, then one for all of it where the card has warpgroups, else one for each format.
    """
    for block, members in by_form(members_of(low, op)).items():
        tiles = _tiles(low, op, block, front)
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


def norms(low: Lowering, op: Project, before: Before) -> bool:
    """Whether one launch norms the rows and makes their tiles: all rows, in one form."""
    return before.take is None and held_rows(low, before) > 0 and has_one_form(low, op)


def has_one_form(low: Lowering, op: Project) -> bool:
    return len(by_form(members_of(low, op))) == 1


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


def _tiles(low: Lowering, op: Project, block: int, front: Front) -> Address:
    width = low.width(op.source)
    groups, bands = _groups(width, block), -(-low.rows // TILE_ROWS)
    (where,) = low.shared.rooms(band_room(width, block, low.rows))
    rows = TileRows(low.row(op.source), where, low.count_at, width, groups)
    shape = (groups, bands * 16), 256
    if isinstance(front, GatedAct):
        rows.x, act = low.row(front.gate), ACTIVATIONS[front.activation]
        gated = GatedTiles(rows, low.row(front.up), low.faults(front.node), act)
        low.launch(f"gated_tiles_{FORMS[block]}", *shape, gated)
    elif front.norm is not None:
        _norm_tiles(low, front, block, NormTiles(tiles=where, groups=groups), bands)
    else:
        low.entry_of(f"{op.source} in blocks of {block}")
        low.launch(f"quantise_tiles_{FORMS[block]}", *shape, rows)
    return where


def _norm_tiles(low: Lowering, before: Before, block: int, args: NormTiles, bands: int) -> None:
    rows = held_rows(low, before)
    args.norm, args.kind = norm_of(low, before, 1), kind_of(before)
    shared = rows * row_bytes(low, before)
    grid = (bands * TILE_ROWS // rows,)
    low.launch(f"norm_tiles_{FORMS[block]}", grid, LANES * rows, args, shared=shared)


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
WIDE_TAIL, CARRY = 1024, 64 * 256 * 4  # bytes of shared memory; of a block


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
    if gate is not None:
        args.gated = ACTIVATIONS[gate.activation]
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
    return ChunkPart(placed.codes, member.out, entry, placed.layout.outputs, number)
