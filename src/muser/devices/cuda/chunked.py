"""Rules of projections of many rows: quantised tiles, then matrix units."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from muser.devices.cuda.card import Address
from muser.devices.cuda.lowering import Lowering
from muser.devices.cuda.projecting import Member, by_form, members_of, types_of
from muser.devices.cuda.structs import ChunkGemm, ChunkPart, TileRows
from muser.formats import FLOATS, BlockType
from muser.graph import Project
from muser.graph.arithmetic import GRID_BLOCK

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
        "q8_0": (64, 37_888),
        "q4_0": (128, 38_912),
        "q4_1": (128, 43_008),
        "q5_0": (128, 43_008),
        "q5_1": (128, 47_104),
        "grid": (64, 35_072),
    }
)
"""Of a GEMM of `gemm.cuh`: outputs of a thread block, and bytes of one of its two stages."""


def many_rows(low: Lowering, op: Project) -> None:
    """For each block size of the group one launch that makes tiles, then one for each format."""
    for block, members in by_form(members_of(low, op)).items():
        tiles = _tiles(low, op, block)
        for kind, some in _by_kernel(members).items():
            _gemm(low, kind, some, tiles)


def _by_kernel(members: Sequence[Member]) -> Mapping[str, list[Member]]:
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(_kernel_of(member.placed.layout.type), []).append(member)
    return groups


def _kernel_of(kind: BlockType) -> str:
    return "grid" if kind in FLOATS else kind.name.lower()


def _tiles(low: Lowering, op: Project, block: int) -> Address:
    width = low.width(op.source)
    groups = -(-width // (GRID_BLOCK if block == GRID_BLOCK else 256))
    bands = -(-low.rows // TILE_ROWS)
    where = low.shared.room(f"tiles {block}", bands * groups * TILE_BYTES[block])
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
        args.part[i] = ChunkPart(
            member.placed.codes,
            member.placed.plane,
            member.out,
            low.entry_of(member.node),
            member.placed.layout.outputs,
        )
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
