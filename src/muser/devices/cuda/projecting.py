"""Rules of projections: few rows read weights once each, many go through matrix units."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from muser.devices.cuda.arena import F32
from muser.devices.cuda.attending import combine_quantised
from muser.devices.cuda.buckets import MOST_FEW, rows_together
from muser.devices.cuda.card import Address
from muser.devices.cuda.layouts import APART, GRID_BYTES, TILE_OUTPUTS, unit_bytes
from muser.devices.cuda.lowering import Lowering, inverse_of
from muser.devices.cuda.placing import Placed
from muser.devices.cuda.projection_structs import Matvec, Part, Quantise, Source
from muser.devices.cuda.shapes import (
    BATCH_LATE,
    BESIDE,
    CODES_BYTES,
    PIECE,
    RESERVED,
    batch_shape,
    inverse,
    line_of,
    matvec_shape,
    share_of_last,
    too_wide,
)
from muser.devices.cuda.sources import NORM, PLAIN, READY, RESIDUAL, Before
from muser.devices.cuda.structs import Attend, Combine
from muser.formats import BlockType
from muser.graph import Activation, GatedAct, Project, Scale, Softcap
from muser.graph.arithmetic import GRID_BLOCK

OUT_PLAIN, OUT_SILU, OUT_GELU, OUT_LOGITS = range(4)
BRIEF = 24 << 20  # bytes of weights: of a projection whose thread blocks all begin at once
PACE = 0.9  # of the memory's speed by its clock
MOST_PACE = 1 << 16  # cycles
COUNTS = 8  # bytes: two words
ROW_THREADS, HELD = 512, (16, 32)  # of a block that makes a row; groups that it may hold
HELD_BYTES = 2592  # of shared memory, for each of those
ALONE = BESIDE + 8 * 1024
"""Of shared memory, that it takes at least: beside a projection it waits for that one's bytes."""
QUANTISE_WARPS = 8  # of a block that quantises a row as it is, 256 elements a warp
FORMS: Mapping[int, str] = MappingProxyType({256: "256", 32: "32", GRID_BLOCK: "grid"})
QUANTISERS: Mapping[int, str] = MappingProxyType(
    {256: "quantise_256", 32: "quantise_32", GRID_BLOCK: "grid_rows"}
)
NUMBERS: Mapping[BlockType, int] = MappingProxyType(
    {
        BlockType.F32: 0,
        BlockType.F16: 1,
        BlockType.Q4_0: 2,
        BlockType.Q4_1: 3,
        BlockType.Q5_0: 6,
        BlockType.Q5_1: 7,
        BlockType.Q8_0: 8,
        BlockType.Q4_K: 12,
        BlockType.Q5_K: 13,
        BlockType.Q6_K: 14,
        BlockType.BF16: 30,
    }
)


@dataclass(frozen=True, slots=True)
class After:
    """What follows a projection and its own kernel does: a gated activation, or the logits' end."""

    gate: GatedAct | None = None
    scale: Scale | None = None
    cap: Softcap | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One weight of a group."""

    placed: Placed
    out: Address
    node: str


def members_of(low: Lowering, op: Project) -> tuple[Member, ...]:
    return tuple(
        Member(low.shared.weights.matrix(weight), low.row(target), node)
        for target, weight, node in zip(op.targets, op.weights, op.nodes, strict=True)
    )


def by_form(members: Iterable[Member]) -> Mapping[int, list[Member]]:
    """Block size of the quantised rows to the members that read such rows."""
    groups: dict[int, list[Member]] = {}
    for member in members:
        groups.setdefault(member.placed.layout.block, []).append(member)
    return groups


def few_rows(low: Lowering, op: Project, before: Before, after: After) -> None:
    """At most `MOST_FEW` rows: one launch for each block size of the group."""
    groups = by_form(members_of(low, op))
    source = before.source(low, op.source)
    for at, (block, members) in enumerate(groups.items()):
        _matvec(low, op, block, members, source if at == 0 else _again(low, source), after)


def _again(low: Lowering, source: Source) -> Source:
    """The same row for a second launch: the sum is there by now."""
    made = Source.from_buffer_copy(source)
    made.norm_entry = low.entry_of("its norm")
    if made.kind == RESIDUAL:
        made.kind, made.row, made.take = NORM, made.sum, 0
    return made


def _matvec(
    low: Lowering,
    op: Project,
    block: int,
    members: Sequence[Member],
    source: Source,
    after: After,
) -> None:
    rows = int(low.bucket)
    ready, made = quantised(low, op, block, source), _made(low)
    args = Matvec(source=ready, faults=low.step.back, count=low.count_at)
    args.made, args.makers = made, math.prod(low.launches[-1].shape.grid)
    layouts = [member.placed.layout for member in members]
    gated, is_batch = after.gate is not None, rows == MOST_FEW
    base = 0
    for i, (member, layout) in enumerate(zip(members, layouts, strict=True)):
        cost = unit_bytes(layout.type) // PIECE
        args.parts[i] = Part(
            member.placed.codes,
            member.out,
            low.entry_of(member.node),
            layout.outputs,
            NUMBERS[layout.type],
            0 if gated else base,
            cost | APART.get(layout.type, 0) << 5,
            inverse(cost),
        )
        base += cost * layout.tiles * layout.groups
    _finish(low, args, after)
    size = sum(layout.bytes for layout in layouts)
    args.by_units = inverse(layouts[0].groups)
    (args.handed,) = low.shared.rooms(handed_room(low.processors))
    last = share_of_last(low.processors, size, BATCH_LATE) if is_batch else _last_share(low, size)
    if is_batch:
        line = line_of(low, layouts, gated=gated, each=1, last_share=last, lasts=MOST_FEW)
        shape = batch_shape(low, block, layouts, line, gated=gated)
        name = f"batch_{FORMS[block]}"
        args.slice, args.copies = shape.slice, shape.copies
        args.pass_tiles, args.table = shape.tiles, shape.table
    else:
        line = line_of(low, layouts, gated=gated, each=2, last_share=last)
        shape = matvec_shape(low, block, layouts, rows, line, gated=gated)
        name = f"matvec_{FORMS[block]}_{rows}"
        args.slots = shape.tiles
        args.pace = pace(low, shape.stage_bytes)
    args.split = line.split
    args.stages, args.stage_bytes = shape.stages, shape.stage_bytes
    low.launch(
        name,
        (shape.grid,),
        shape.threads,
        args,
        shared=shape.shared,
        served=types_of(members),
        tensors=tuple(member.placed.name for member in members),
    )


def pace(low: Lowering, size: int) -> int:
    """Cycles from one request of `size` bytes to the next: as memory answers them, so that what is
    asked in between, by the kernel that makes the row, waits for none of them.
    """
    speed = PACE * low.shared.card.facts.bytes_a_cycle
    return min(int(size / speed), MOST_PACE) if speed > 0 else 0


def _last_share(low: Lowering, size: int) -> float | None:
    """Of the thread blocks that begin last: `split`. Behind attention, whose tiles hold some
    multiprocessors until everything is there, nothing.
    """
    if size > BRIEF:
        return share_of_last(low.processors, size)
    return 0.0 if _is_behind_attention(low) else None


def _is_behind_attention(low: Lowering) -> bool:
    """Whether the rows that the next projection reads are attention's, quantised."""
    return any(isinstance(launch.args, Attend | Combine) for launch in low.launches[-2:])


def types_of(members: Iterable[Member]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(member.placed.layout.type.name for member in members))


def _finish(low: Lowering, args: Matvec, after: After) -> None:
    if after.gate is not None:
        silu = after.gate.activation is Activation.SILU
        args.epilogue = OUT_SILU if silu else OUT_GELU
        args.out, args.act_entry = low.row(after.gate.target), low.entry_of(after.gate.node)
    elif after.scale is not None or after.cap is not None:
        args.epilogue = OUT_LOGITS
    if after.scale is not None:
        args.scale, args.scale_entry = after.scale.factor, low.entry_of(after.scale.node)
    if after.cap is not None:
        args.cap, args.inverse_cap = after.cap.cap, inverse_of(after.cap.cap)
        args.cap_entry = low.entry_of(after.cap.node)


def code_rooms(width: int, block: int) -> Mapping[str, int]:
    """Quantised rows and their scales (`quantise.cuh`). A batch copies as many whatever it has."""
    if block == GRID_BLOCK:
        units = -(-width // GRID_BLOCK)
        row, scales = units * GRID_BYTES, units
    else:
        units = -(-width // 256)
        row, scales = units * CODES_BYTES, units * 256 // block
    codes = {f"codes {block}": MOST_FEW * row, f"scales {block}": F32 * MOST_FEW * scales}
    return {**codes, "counts": COUNTS}


def handed_room(processors: int) -> Mapping[str, int]:
    """Totals that a thread block hands on, gate and up; zeros between launches."""
    return {"handed": processors * MOST_FEW * 2 * TILE_OUTPUTS * F32}


def _made(low: Lowering) -> Address:
    """Where thread blocks that made the latest rows are counted. Two words in turn: a projection
    sets its own back while thread blocks of the next one begin.
    """
    (counts,) = low.shared.rooms({"counts": COUNTS})
    turn = sum(isinstance(launch.args, Matvec) for launch in low.launches) % 2
    return counts + turn * COUNTS // 2


def quantised(low: Lowering, op: Project, block: int, source: Source) -> Source:
    """A launch that makes the quantised rows, and the source that says they are ready."""
    width = source.width
    codes, scales, _ = low.shared.rooms(code_rooms(width, block))
    made = _made(low)
    if (
        source.kind == PLAIN
        and block == 256
        and combine_quantised(low, source.row, codes, scales, made)
    ):
        return Source(codes=codes, scales=scales, kind=READY, width=width)
    low.entry_of(f"{op.source} in blocks of {block}")
    args = Quantise(source, codes, scales, low.count_at, low.step.back, made)
    args.together = rows_together(low.bucket, block)
    if source.kind == PLAIN:
        grid = low.rows, -(-width // (256 * QUANTISE_WARPS))
        low.launch(QUANTISERS[block], grid, 32 * QUANTISE_WARPS, args)
    else:
        args.held, shared = held_groups(low, source)
        shared = max(ALONE, shared)
        low.launch(f"norm_{QUANTISERS[block]}", (low.rows,), ROW_THREADS, args, shared=shared)
    return Source(codes=codes, scales=scales, kind=READY, width=width)


def held_groups(low: Lowering, source: Source) -> tuple[int, int]:
    """How many groups of a row a kernel is made for that holds it in registers (`held.cuh`), none
    where it does not, and its bytes of shared memory: with 99 KB a block rows of up to 4,096.

    Raises `DeviceError` for a row that does not fit at all.
    """
    groups, room = -(-source.width // 256), low.shared.card.facts.shared - RESERVED
    has_weights = source.weight and (not source.branch_norm or source.branch_weight)
    for held in HELD if has_weights and source.width % 256 == 0 else ():
        size = 2048 * groups + HELD_BYTES * held
        if groups <= held and size <= room:
            return held, size
    if 1024 * groups > room:
        raise too_wide(source.width)
    return 0, 1024 * groups
