"""Rules of projections: few rows read weights once each, many go through matrix units."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from muser.devices.cuda.arena import F32
from muser.devices.cuda.buckets import MOST_FEW
from muser.devices.cuda.card import Address
from muser.devices.cuda.layouts import APART, GRID_BYTES, TILE_OUTPUTS, tile_bytes, unit_bytes
from muser.devices.cuda.lowering import Lowering, inverse_of
from muser.devices.cuda.placing import Placed
from muser.devices.cuda.sources import NORM, PLAIN, READY, RESIDUAL, Before
from muser.devices.cuda.structs import Matvec, Part, Quantise, Source, Split
from muser.errors import DeviceError
from muser.formats import FLOATS, BlockType
from muser.graph import Activation, GatedAct, Project, Scale, Softcap
from muser.graph.arithmetic import GRID_BLOCK
from muser.kv import round_up

OUT_PLAIN, OUT_SILU, OUT_GELU, OUT_LOGITS = range(4)
CODES_BYTES = 272  # of 256 elements of a quantised row
PIECE = 16  # bytes of the smallest copy
SPAN = 2  # units of a chunk of `matvec.cuh`
SHORT = 24 << 20  # bytes of weights
PAUSE = 1000  # nanoseconds
MANY, LAST = 64, 2  # of so many thread blocks the last ones get less
LATE = 250_000  # bytes that the others are ahead of them
LEAST_OF_LAST = 0.25  # of a share
COUNTS = 8  # bytes: two words
RESERVED = 9 * 1024  # of shared memory: the kernels' own variables
BESIDE = 32 * 1024  # what a projection of one row leaves to a kernel that makes a quantised row
ROW_THREADS = 256  # of a block that makes a row
ALONE = (
    BESIDE + 8 * 1024
)  # of shared memory that it takes: beside a projection it would wait for that one's bytes
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
GRIDS = frozenset(NUMBERS[kind] for kind in FLOATS)


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
    follows_short = _follows_short(low)
    ready = quantised(low, op, block, source)
    args = Matvec(source=ready, faults=low.step.back, count=low.count_at)
    args.made, args.makers = _made(low), math.prod(low.launches[-1].shape.grid)
    base = 0
    for i, member in enumerate(members):
        layout = member.placed.layout
        cost = unit_bytes(layout.type) // PIECE
        args.parts[i] = Part(
            member.placed.codes,
            member.out,
            low.entry_of(member.node),
            layout.outputs,
            NUMBERS[layout.type],
            base,
            cost | APART.get(layout.type, 0) << 5,
            _inverse(cost),
        )
        base += layout.outputs * cost
    _finish(low, args, after)
    if rows == MOST_FEW:
        shape = batch_shape(low, block, members, after.gate is not None)
        name = f"batch_{FORMS[block]}"
        args.slice = shape.slice
    else:
        shape = matvec_shape(low, block, members, rows, after.gate is not None)
        name = f"matvec_{FORMS[block]}_{rows}"
    args.stages, args.stage_bytes, args.pass_tiles = shape.stages, shape.stage_bytes, shape.tiles
    if source.kind != PLAIN and follows_short:
        args.pause = PAUSE
    args.by_spans = (1 << 16) // -(-members[0].placed.layout.groups // SPAN) + 1
    shared_out = members[0].placed.layout.outputs if after.gate is not None else base
    size = sum(_bytes_of(args, part) for part in args.parts)
    is_long = rows < MOST_FEW and size > SHORT and shape.grid >= MANY
    args.split = _split(shape.grid, shared_out, size, LAST if is_long else 0)
    low.launch(
        name,
        (shape.grid,),
        shape.threads,
        args,
        shared=shape.shared,
        served=types_of(members),
        tensors=tuple(member.placed.name for member in members),
    )


def _follows_short(low: Lowering) -> bool:
    """Whether the last projection is over so soon that all thread blocks of the next one begin at
    once, when the kernel that makes their row does.
    """
    for launch in reversed(low.launches):
        if isinstance(launch.args, Matvec):
            return sum(_bytes_of(launch.args, part) for part in launch.args.parts) <= SHORT
    return False


def _bytes_of(args: Matvec, part: Part) -> int:
    units = -(-int(args.source.width) // (GRID_BLOCK if part.format in GRIDS else 256))
    pieces = TILE_OUTPUTS * (int(part.size) & 31) + (int(part.size) >> 5)
    return -(-int(part.outputs) // TILE_OUTPUTS) * units * pieces * PIECE


def _inverse(divisor: int) -> int:
    """⌈2³² / divisor⌉, by which the kernels divide; of 1, which nothing is divided by, 0."""
    return -(-(1 << 32) // divisor) & 0xFFFFFFFF


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


def _made(low: Lowering) -> Address:
    """Where thread blocks that made the latest rows are counted. Two words in turn: a projection
    sets its own back while thread blocks of the next one begin.
    """
    (counts,) = low.shared.rooms({"counts": COUNTS})
    turn = sum(isinstance(launch.args, Quantise) for launch in low.launches) % 2
    return counts + turn * COUNTS // 2


def _split(grid: int, total: int, size: int, last: int) -> Split:
    """Of `total` shares, `size` bytes, the `last` thread blocks get less, since they are late."""
    rest = max(LEAST_OF_LAST, 1 - LATE * grid / max(1, size))
    each = int(total * rest / grid) if last else 0
    full = grid - last
    return Split(*divmod(total - last * each, full), _inverse(full), full, each, total)


def quantised(low: Lowering, op: Project, block: int, source: Source) -> Source:
    """A launch that makes the quantised rows, and the source that says they are ready."""
    width = source.width
    codes, scales, _ = low.shared.rooms(code_rooms(width, block))
    low.entry_of(f"{op.source} in blocks of {block}")
    args = Quantise(source, codes, scales, low.count_at, low.step.back)
    if source.kind == PLAIN:
        grid = low.rows, -(-width // (256 * QUANTISE_WARPS))
        low.launch(QUANTISERS[block], grid, 32 * QUANTISE_WARPS, args)
    else:
        shared = max(ALONE, 2560 * -(-width // 256))
        low.launch(f"norm_{QUANTISERS[block]}", (low.rows,), ROW_THREADS, args, shared=shared)
    args.made = _made(low)
    return Source(codes=codes, scales=scales, kind=READY, width=width)


@dataclass(frozen=True, slots=True)
class Form:
    """A launch of `matvec.cuh` or `batch.cuh`: what their texts call stages, slice and pass."""

    grid: int
    threads: int
    stages: int
    stage_bytes: int
    shared: int
    slice: int = 0
    tiles: int = 0


def matvec_shape(
    low: Lowering, block: int, members: Sequence[Member], rows: int, gated: bool
) -> Form:
    """The most bytes under way that leave room for all terms, or for as many as there is room
    (`matvec.cuh` has the formula).
    """
    work = _shares(low, members)
    units = members[0].placed.layout.groups
    row = GRID_BYTES if block == GRID_BLOCK else CODES_BYTES
    blocks = 8 * units if block == 32 else units
    odd = units + 1 - units % 2
    terms = {256: odd, 32: 8 * units + 4, GRID_BLOCK: 2 * odd}[block]
    fixed = rows * units * row + rows * 4 * round_up(blocks, 4) + 16 * work.segments
    room = low.shared.card.facts.shared - (BESIDE if rows == 1 else RESERVED) - fixed
    each = rows * 4 * TILE_OUTPUTS * terms * (2 if gated else 1)
    most = 16 if rows == 1 else 12
    wanted = -(-work.segments // (2 if gated else 1))
    for least in (min(wanted, 4), 1):
        for warps, stages in ((most, 2), (12, 2), (most, 1), (8, 1), (4, 1), (2, 1), (1, 1)):
            ring = warps * stages * 2 * work.tile
            tiles = min(wanted, (room - ring) // each)
            if tiles >= least:
                shared = fixed + ring + tiles * each
                tiles *= 2 if gated else 1
                return Form(work.grid, 32 * warps, stages, 2 * work.tile, shared, tiles=tiles)
    raise _too_wide(members)


@dataclass(frozen=True, slots=True)
class Shares:
    """What a launch's thread blocks share out: `outputs` and `segments` are the most of one."""

    grid: int
    outputs: int
    segments: int
    tile: int


def _shares(low: Lowering, members: Sequence[Member]) -> Shares:
    sizes = [unit_bytes(member.placed.layout.type) // PIECE for member in members]
    outputs = [member.placed.layout.outputs for member in members]
    total = sum(count * size for count, size in zip(outputs, sizes, strict=True))
    grid = min(low.processors, max(1, min(sum(outputs), total)))
    share = -(-total // (grid - LAST if grid >= MANY else grid))
    most = -(-share // min(sizes)) + 4
    segments = -(-most // TILE_OUTPUTS) + 2 * len(members)
    return Shares(grid, most, segments, max(tile_bytes(m.placed.layout.type) for m in members))


UNITS: Mapping[int, int] = MappingProxyType({256: 2, 32: 1, GRID_BLOCK: 2})
"""Of a batch: units of a job, by the elements of a quantised block."""
STEPS: Mapping[int, int] = MappingProxyType({256: 16, 32: 32, GRID_BLOCK: 64})
"""Of a batch: a row in shared memory has an odd number of these bytes."""
WARPS, ROOMY_WARPS = 11, 15  # of a batch that multiply; the second for K-quants on sm_90
OWN_BYTES = 4 * 1024  # of shared memory: the variables of `batch.cuh`, and what a launch takes
UNDER_WAY = 64 * 1024  # of a batch: bytes of weights that keep memory busy
COPIES = 2  # slices of the rows


def batch_shape(low: Lowering, block: int, members: Sequence[Member], gated: bool) -> Form:
    """Teams of warps for all tiles at once, and what fits into shared memory (`batch.cuh` has the
    formula): all of the rows if enough weights are under way then, else slices of them.
    """
    work = _shares(low, members)
    units, job = members[0].placed.layout.groups, UNITS[block]
    card = low.shared.card.facts
    most = ROOMY_WARPS if block == 256 and card.capability == (9, 0) else WARPS
    row = GRID_BYTES if block == GRID_BLOCK else CODES_BYTES
    stage = job * work.tile
    fixed = 64 * (8 * units if block == 32 else units) + 16 * work.segments
    room = card.shared - OWN_BYTES - fixed
    whole = round_up(units, job)
    tiles = min(252, round_up(work.segments, 4))
    at_once = _most_tiles(work.grid, members, gated)
    full = _team_warps(at_once, most)

    def need(warps: int, stages: int, cut: int, part: int) -> int:
        kept, copies = (warps if gated else warps // 2, 1) if cut >= units else (part, COPIES)
        size = _odd(STEPS[block], cut * row)
        return warps * stages * stage + copies * 16 * size + 1024 * kept

    for stages in (4, 3, 2, 1):
        if full * stages * stage >= UNDER_WAY and need(full, stages, whole, tiles) <= room:
            shared = need(full, stages, whole, tiles) + fixed
            return Form(work.grid, 32 * (full + 1), stages, stage, shared, whole, tiles)
    for warps in dict.fromkeys((full, 7, 4, 2, 1)):
        for part in dict.fromkeys((tiles, min(tiles, 48), min(tiles, 24), min(tiles, 8), 4)):
            for stages, least in ((2, 8 * job), (1, 4 * job), (1, job)):
                cut = least
                if need(warps, stages, cut, part) > room:
                    continue
                while cut + job < whole and need(warps, stages, cut + job, part) <= room:
                    cut += job
                shared = need(warps, stages, cut, part) + fixed
                return Form(work.grid, 32 * (warps + 1), stages, stage, shared, cut, part)
    raise _too_wide(members)


def _odd(step: int, size: int) -> int:
    count = -(-size // step)
    return step * (count + 1 - count % 2)


def _most_tiles(grid: int, members: Sequence[Member], gated: bool) -> int:
    """The most tiles of a thread block, or pairs of them with a gate (`make_shares` says whose)."""
    if gated:
        ranges = [_ranges(grid, members[0].placed.layout.outputs, 0, 0, 1)]
    else:
        sizes = [unit_bytes(member.placed.layout.type) // 16 for member in members]
        outputs = [member.placed.layout.outputs for member in members]
        total, before, ranges = sum(map(int.__mul__, outputs, sizes)), 0, []
        for count, size in zip(outputs, sizes, strict=True):
            ranges.append(_ranges(grid, count, total, before, size))
            before += count * size
    return max(map(sum, zip(*ranges, strict=True)))


def _ranges(grid: int, outputs: int, total: int, before: int, size: int) -> list[int]:
    """Tiles of one weight that each thread block has a share of."""
    if total == 0:
        total = outputs
    bounds = [
        min(outputs, max(0, -(-(total * b // grid - before) // size))) for b in range(grid + 1)
    ]
    return [
        (high - 1) // TILE_OUTPUTS - low // TILE_OUTPUTS + 1 if high > low else 0
        for low, high in pairwise(bounds)
    ]


def _team_warps(tiles: int, most: int) -> int:
    """Warps, of at most `most`, that are all in teams when so many tiles are shared out; of more
    tiles than that as few as need no more rounds.
    """
    if tiles >= most:
        return -(-tiles // -(-tiles // most))
    return max(1, most // max(1, tiles)) * max(1, tiles)


def _too_wide(members: Sequence[Member]) -> DeviceError:
    width = members[0].placed.layout.width
    return DeviceError(
        f"Rows of {width} elements do not fit into the shared memory of this card.",
        "Use --device cpu.",
    )
