"""Launches of the projections of few rows: thread blocks, warps, stages and shared memory, so that
all of it fits (`matvec.cuh` and `batch.cuh` have the formulas).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from muser.devices.cuda.layouts import GRID_BYTES, TILE_OUTPUTS, Layout, tile_bytes, unit_bytes
from muser.devices.cuda.lowering import Lowering
from muser.devices.cuda.projection_structs import Split
from muser.errors import DeviceError
from muser.graph.arithmetic import GRID_BLOCK
from muser.kv import round_up

CODES_BYTES = 272  # of 256 elements of a quantised row
PIECE = 16  # bytes of the smallest copy
RESERVED = 9 * 1024  # of shared memory: the kernels' own variables
BESIDE = 32 * 1024  # what a projection of one row leaves to a small kernel
MANY, LAST = 64, 2  # of so many thread blocks the last ones may begin late and get less
LATE = 250_000  # bytes that the others are ahead of them
BATCH_LATE = 80_000  # of a batch, each of whose rows has held a multiprocessor
LEAST_OF_LAST = 0.25  # of a share
BETWEEN = 128  # bytes of shared memory between terms of several rows
SLOTS = 32  # of a matvec: pieces whose terms are in shared memory at a time, at most


def inverse(divisor: int) -> int:
    """⌈2³² / divisor⌉, by which the kernels divide; of 1, which nothing is divided by, 0."""
    return -(-(1 << 32) // divisor) & 0xFFFFFFFF


def share_of_last(grid: int, size: int, late: int = LATE) -> float:
    """Of a projection of `size` bytes: they begin late, and end with the others."""
    return max(LEAST_OF_LAST, 1 - late * grid / max(1, size))


def split(grid: int, total: int, last_share: float | None = None, lasts: int = LAST) -> Split:
    """`total` among thread blocks; the last `lasts` of many get `last_share` of a share."""
    last = lasts if last_share is not None and grid >= MANY else 0
    each = int(total * (last_share or 0) / grid)
    full = grid - last
    return Split(*divmod(total - last * each, full), inverse(full), full, each, total)


@dataclass(frozen=True, slots=True)
class Form:
    """A launch of `matvec.cuh` or `batch.cuh`; `tiles`: slots of the one, pieces of a pass of the
    other.
    """

    grid: int
    threads: int
    stages: int
    stage_bytes: int
    shared: int
    slice: int = 0
    tiles: int = 0
    table: int = 0
    copies: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """How thread blocks share: the most pieces, or pairs, of one, and units at least and most."""

    grid: int
    split: Split
    pieces: int
    least: int
    most: int


def line_of(
    low: Lowering,
    layouts: Sequence[Layout],
    *,
    gated: bool,
    each: int,
    last_share: float | None,
    lasts: int = LAST,
) -> Line:
    """At most `each` thread blocks a tile: what its chains have come to is handed on from one to
    the next.
    """
    tiles = [layout.tiles for layout in layouts]
    costs = [unit_bytes(layout.type) // PIECE for layout in layouts]
    if gated:
        tiles, costs = tiles[:1], [1]
    units = layouts[0].groups
    total = units * sum(map(int.__mul__, tiles, costs))
    grid = min(low.processors, each * sum(tiles))
    shares = split(grid, total, last_share, lasts)
    most = shares.each + 1
    least = shares.last if shares.full < grid else shares.each
    pieces = most // (units * min(costs)) + 2
    return Line(grid, shares, pieces, least // max(costs) - ROUNDED, most // min(costs) + ROUNDED)


def matvec_shape(
    low: Lowering, block: int, layouts: Sequence[Layout], rows: int, line: Line, *, gated: bool
) -> Form:
    """The most bytes under way that leave room for all terms, or for as many as there is room
    (`matvec.cuh` has the formula).
    """
    units = layouts[0].groups
    row = GRID_BYTES if block == GRID_BLOCK else CODES_BYTES
    blocks = 8 * units if block == 32 else units
    odd = units + 1 - units % 2
    terms = {256: odd, 32: 8 * units + 4, GRID_BLOCK: 2 * odd}[block]
    pair = 2 if gated else 1
    fixed = rows * units * row + rows * 4 * round_up(blocks, 4) + 32 * line.pieces * pair
    room = low.shared.card.facts.shared - (BESIDE if rows == 1 else RESERVED) - fixed
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
                return Form(line.grid, threads, stages, stage, shared, tiles=slots)
    raise too_wide(layouts[0].width)


ROUNDED = 2  # units: stretches of the line end at multiples of so many of a tile
UNITS: Mapping[int, int] = MappingProxyType({256: 2, 32: 1, GRID_BLOCK: 2})
"""Of a batch: units of a job, by the elements of a quantised block."""
STEPS: Mapping[int, int] = MappingProxyType({32: 32, GRID_BLOCK: 64})
"""Of a batch: a row in shared memory has an odd number of these bytes, where rows lie apart."""
WARPS, ROOMY_WARPS = 12, 16  # of a batch; the second for K-quants on sm_90
STAGES = 4  # of a batch, at most: a unit of a tile each
OWN_BYTES = 4 * 1024  # of shared memory: the variables of `batch.cuh`, and what a launch takes
UNDER_WAY = 32 * 1024  # of a batch: bytes of weights on their way beside those being multiplied
COPIES, HELD, OF_RUNS, UNITS_OF_TURNS = 12, (12, 6, 4), 4, 4
"""Slices of the rows in shared memory at most, and what else is tried where not all fit; slices of
runs; units of a slice of turns where all rows fit.
"""
CHAIN, JOB = 1040, 32  # bytes
TABLE = 192  # jobs that are worked out at a time
PASS = 16  # tiles that are enough to have under way; with a gate rather all of them


def batch_shape(
    low: Lowering, block: int, layouts: Sequence[Layout], line: Line, *, gated: bool
) -> Form:
    """Warps, stages, slices and pieces of a pass that fit (`batch.cuh` has the formula): all of the
    rows if enough weights are on their way then, else slices of them that take turns.
    """
    grid = line.grid
    tile = max(tile_bytes(layout.type) for layout in layouts)
    units, job = layouts[0].groups, UNITS[block]
    card = low.shared.card.facts
    each = 2 if gated else 1
    tiles, least_units = line.pieces * each, line.least * each
    table = min(TABLE, line.most * each // job + tiles)
    most_warps = ROOMY_WARPS if block == 256 and card.capability == (9, 0) else WARPS
    most = max(1, min(most_warps, tiles * -(-units // job)))
    row = GRID_BYTES if block == GRID_BLOCK else CODES_BYTES
    fixed = 64 * (8 * units if block == 32 else units) + 16 * tiles
    room = card.shared - OWN_BYTES - fixed
    whole = round_up(-(-units // COPIES), job)  # units of a slice at least, with which all rows fit
    of_runs, of_turns = round_up(-(-units // OF_RUNS), job), max(whole, UNITS_OF_TURNS)
    parts = [part for part in (48, 32, PASS, 8, 4, 2) if part < tiles]
    parts = [round_up(tiles, 2), *parts] if gated or tiles <= PASS else [PASS, 8, 4, 2]

    def form(warps: int, stages: int, cut: int, part: int, copies: int = COPIES) -> Form | None:
        is_cut = cut * copies < units
        rows = 16 * _pitch(block, (cut if is_cut else units) * row)
        enough = line.least >= units and least_units >= warps * units
        runs = not is_cut and enough and part >= (tiles if gated else warps)
        jobs = 0 if runs else table
        size = cut if is_cut else of_runs if runs else of_turns
        threads = 32 * (warps if runs else warps + 1)
        need = warps * stages * tile + (copies if is_cut else 1) * rows + CHAIN * part + JOB * jobs
        if need > room or threads > 32 * most_warps:
            return None
        held = copies if is_cut else COPIES
        return Form(grid, threads, stages, tile, need + fixed, size, part, jobs, held)

    many = range(most, 2 * most // 3, -1)
    for warps, stages in product(many, range(STAGES, 1, -1)):
        if (stages - 1) * warps * tile < min(UNDER_WAY, room // 6):
            continue
        found = form(warps, stages, whole, parts[0])
        if found is not None:
            return found
    for under, copies in product((UNDER_WAY, UNDER_WAY // 2, 0), HELD):
        fair = [part for part in parts if part >= min(tiles, 8) or under == 0]
        for part, warps in product(fair, (*many, *range(2 * most // 3, 0, -1))):
            for stages in range(1 if under == 0 else 2, STAGES + 1):
                found = form(warps, stages, job, part, copies)
                if (stages - 1) * warps * tile < under or found is None:
                    continue
                return _larger(form, found, warps, stages, job, part, copies, units)
    raise too_wide(layouts[0].width)


def _larger(
    form: Callable[..., Form | None],
    found: Form,
    warps: int,
    stages: int,
    job: int,
    part: int,
    copies: int,
    units: int,
) -> Form:
    """With the longest slices of the rows for which there is room, then with more stages."""
    cut = job
    while cut * copies < units and (larger := form(warps, stages, cut + job, part, copies)):
        cut, found = cut + job, larger
    for more in range(stages + 1, STAGES + 1):
        found = form(warps, more, cut, part, copies) or found
    return found


def _pitch(block: int, size: int) -> int:
    if block not in STEPS:
        return size
    step = STEPS[block]
    count = -(-size // step)
    return step * (count + 1 - count % 2)


def too_wide(width: int) -> DeviceError:
    return DeviceError(
        f"Rows of {width} elements do not fit into the shared memory of this card.",
        "Use --device cpu.",
    )
