"""Launches of the projections of few rows: thread blocks, warps, stages and shared memory, so that
all of it fits (`matvec.cuh` and `batch.cuh` have the formulas).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from muser.devices.cuda.layouts import GRID_BYTES, TILE_OUTPUTS, Layout, tile_bytes, unit_bytes
from muser.devices.cuda.lowering import Lowering
from muser.devices.cuda.structs import Split
from muser.errors import DeviceError
from muser.graph.arithmetic import GRID_BLOCK
from muser.kv import round_up

CODES_BYTES = 272  # of 256 elements of a quantised row
PIECE = 16  # bytes of the smallest copy
RESERVED = 9 * 1024  # of shared memory: the kernels' own variables
BESIDE = 32 * 1024  # what a projection of one row leaves to a small kernel
BESIDE_TILES = 82 * 1024  # and behind attention to a block of one tile and one of the chain
MANY, LAST = 64, 2  # of so many thread blocks the last ones may begin late and get less
LATE = 250_000  # bytes that the others are ahead of them
LEAST_OF_LAST = 0.25  # of a share
BETWEEN = 128  # bytes of shared memory between terms of several rows
SLOTS = 32  # of a matvec: pieces whose terms are in shared memory at a time, at most


def inverse(divisor: int) -> int:
    """⌈2³² / divisor⌉, by which the kernels divide; of 1, which nothing is divided by, 0."""
    return -(-(1 << 32) // divisor) & 0xFFFFFFFF


def share_of_last(grid: int, size: int) -> float:
    """Of a projection of `size` bytes: they begin late, and end with the others."""
    return max(LEAST_OF_LAST, 1 - LATE * grid / max(1, size))


def split(grid: int, total: int, last_share: float | None = None) -> Split:
    """`total` among thread blocks; the last of many get `last_share` of a share."""
    last = LAST if last_share is not None and grid >= MANY else 0
    each = int(total * (last_share or 0) / grid)
    full = grid - last
    return Split(*divmod(total - last * each, full), inverse(full), full, each, total)


@dataclass(frozen=True, slots=True)
class Form:
    """A launch of `matvec.cuh` or `batch.cuh`; `tiles`: pieces of a pass of a batch, 0 for runs."""

    grid: int
    threads: int
    stages: int
    stage_bytes: int
    shared: int
    slice: int = 0
    tiles: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """What thread blocks share out, and the most pieces, or pairs, of one."""

    grid: int
    total: int
    pieces: int


def matvec_line(low: Lowering, layouts: Sequence[Layout], *, gated: bool) -> Line:
    """Where there are few tiles, two thread blocks for each: what its chains have come to is handed
    on from one to the next.
    """
    tiles = [layout.tiles for layout in layouts]
    costs = [unit_bytes(layout.type) // PIECE for layout in layouts]
    if gated:
        tiles, costs = tiles[:1], [1]
    units = layouts[0].groups
    total = units * sum(map(int.__mul__, tiles, costs))
    grid = min(low.processors, 2 * sum(tiles))
    share = -(-total // (grid - LAST if grid >= MANY else grid))
    return Line(grid, total, -(-share // (units * min(costs))) + 2 * len(tiles))


def matvec_shape(
    low: Lowering,
    block: int,
    layouts: Sequence[Layout],
    rows: int,
    line: Line,
    *,
    gated: bool,
    beside: int,
) -> Form:
    """The most bytes under way that leave room for all terms, or for as many as there is room
    (`matvec.cuh` has the formula). `beside`: bytes that other kernels get.
    """
    units = layouts[0].groups
    row = GRID_BYTES if block == GRID_BLOCK else CODES_BYTES
    blocks = 8 * units if block == 32 else units
    odd = units + 1 - units % 2
    terms = {256: odd, 32: 8 * units + 4, GRID_BLOCK: 2 * odd}[block]
    pair = 2 if gated else 1
    fixed = rows * units * row + rows * 4 * round_up(blocks, 4) + 32 * line.pieces * pair
    room = low.shared.card.facts.shared - beside - fixed
    each = rows * 4 * TILE_OUTPUTS * terms * pair
    stage = 2 * max(tile_bytes(layout.type) for layout in layouts)
    walkers, enough = (1, 4) if rows == 1 else (2, 2)
    if rows > 1:
        fixed, room = fixed + BETWEEN, room - BETWEEN
    is_new = low.shared.card.facts.capability >= (10, 0)  # whose compiler needs more registers
    most = 16 - walkers - 4 * (rows > 1 and is_new)
    many = [(warps, 2) for warps in (most, 12, 10) if warps <= most]
    rings = (*many, *((warps, 1) for warps in (most, 10, 8, 4, 2, 1)))
    wanted = min(line.pieces, SLOTS)
    for least in (min(wanted, enough), 1):
        for warps, stages in rings:
            ring = warps * stages * stage
            slots = min(wanted, (room - ring) // each)
            if slots >= least:
                shared = fixed + ring + slots * each
                threads = 32 * (warps + walkers)
                return Form(line.grid, threads, stages, stage, shared, slots=slots)
    raise _too_wide(layouts)


UNITS: Mapping[int, int] = MappingProxyType({256: 2, 32: 1, GRID_BLOCK: 2})
"""Of a batch: units of a job, by the elements of a quantised block."""
TERMS: Mapping[int, int] = MappingProxyType({256: 1024, 32: 8192, GRID_BLOCK: 1280})
"""Of a batch: bytes of the terms of a tile's unit."""
STEPS: Mapping[int, int] = MappingProxyType({256: 16, 32: 32, GRID_BLOCK: 64})
"""Of a batch: a row in shared memory has an odd number of these bytes."""
WARPS, ROOMY_WARPS = 11, 15  # of a batch that multiply by runs; the second for K-quants on sm_90
WALK_WARPS = 2  # of a batch that walk chains, where it is not by runs
STAGES = 4  # of a batch, at most: a unit of a tile each
OWN_BYTES = 6 * 1024  # of shared memory: the variables of `batch.cuh`, and what a launch takes
UNDER_WAY = 56 * 1024  # of a batch: bytes of weights on their way
COPIES = 4  # slices of the rows
CHAIN = 1040  # bytes
PASS = 16  # pieces that are enough to have under way, without runs
ENOUGH = 24  # slots, without runs


def batch_shape(
    low: Lowering, block: int, layouts: Sequence[Layout], line: Line, *, gated: bool
) -> Form:
    """Warps, stages, slices, pieces of a pass and slots that fit (`batch.cuh` has the formula): all
    of the rows if enough weights are on their way then, else slices of them that take turns.
    """
    tile = max(tile_bytes(layout.type) for layout in layouts)
    units, job, pair = layouts[0].groups, UNITS[block], 2 if gated else 1
    card = low.shared.card.facts
    is_roomy = block == 256 and card.capability == (9, 0)
    most = ROOMY_WARPS if is_roomy else WARPS
    row = GRID_BYTES if block == GRID_BLOCK else CODES_BYTES
    pieces = line.pieces * pair
    fixed = 64 * (8 * units if block == 32 else units) + 64 * pieces + 128
    room = card.shared - OWN_BYTES - fixed
    wanted = min(UNDER_WAY, room // 3)
    whole = round_up(-(-units // COPIES), job)
    alone = (line.pieces - 2 * (len(layouts) - 1 - gated)) * pair  # parts join where tiles do
    passes = [part for part in (round_up(alone, 2), PASS, 8, 4, 2) if part <= round_up(alone, 2)]

    def form(warps: int, stages: int, cut: int, part: int, slots: int) -> Form | None:
        is_cut = cut * COPIES < units
        rows = 16 * _odd(STEPS[block], (cut if is_cut else units) * row)
        chains = part or max(warps, pieces * gated)
        need = warps * stages * tile + (COPIES if is_cut else 1) * rows + CHAIN * chains
        need += slots * job * TERMS[block]
        if need > room:
            return None
        threads = 32 * (warps + 1 + (WALK_WARPS if part else 0))
        return Form(line.grid, threads, stages, tile, need + fixed, cut, part, slots)

    def largest(warps: int, cut: int, part: int, slots: int, under: int) -> Form | None:
        stages = (STAGES - i for i in range(STAGES) if (STAGES - i) * warps * tile >= under)
        forms = (form(warps, stage, cut, part, slots) for stage in stages)
        return next((found for found in forms if found is not None), None)

    tiles = sum(layout.tiles for layout in layouts) // line.grid
    for warps in range(min(most, tiles), 2 * most // 3, -1):
        found = largest(warps, whole, 0, 0, wanted)
        if found is not None:
            return found
    most = max(1, min(most - WALK_WARPS, pieces * -(-units // job)))
    for slots in (ENOUGH, most + 2):
        found = largest(most, whole, passes[0], slots, wanted) if passes[0] <= PASS else None
        if found is not None:
            return found
    fewer = range(most, 0, -1)
    for slots, under, least in (
        (ENOUGH, wanted, 3 * job),
        (ENOUGH, wanted, 2 * job),
        (most + 2, wanted, job),
        (4, wanted, job),
        (8, wanted // 2, job),
        (2, 0, job),
        (1, 0, job),
    ):
        for part, warps in product([part for part in passes if part <= PASS or part == 2], fewer):
            least_warps = most - 1 if slots == ENOUGH else 2 * most // 3
            least_part = min(passes[0], PASS if slots == ENOUGH else 4)
            if under > 0 and (part < least_part or warps < least_warps):
                continue
            found = largest(warps, min(least, whole), part, slots, under)
            if found is None:
                continue
            for cut in range(found.slice + job, whole + 1, job):
                found = form(warps, found.stages, cut, part, slots) or found
            return found
    raise _too_wide(layouts)


def _odd(step: int, size: int) -> int:
    count = -(-size // step)
    return step * (count + 1 - count % 2)


def _too_wide(layouts: Sequence[Layout]) -> DeviceError:
    width = layouts[0].width
    return DeviceError(
        f"Rows of {width} elements do not fit into the shared memory of this card.",
        "Use --device cpu.",
    )
