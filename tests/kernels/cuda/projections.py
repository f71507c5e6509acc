"""Arguments of the projection kernels as ctypes, and weights placed by their own kernels."""

from ctypes import Structure, c_float, c_int, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from muser.formats import BlockType

from ..bench import FLOATS
from .shim import address, device, poisoned

READY, PLAIN, NORM, RESIDUAL = range(4)
OUT_PLAIN, OUT_SILU, OUT_GELU, OUT_LOGITS = range(4)
GROUP_BYTES = {
    BlockType.Q4_K: 144,
    BlockType.Q5_K: 176,
    BlockType.Q6_K: 208,
    BlockType.Q8_0: 272,
    BlockType.Q4_0: 144,
    BlockType.Q4_1: 160,
    BlockType.Q5_0: 176,
    BlockType.Q5_1: 192,
}


def tile_bytes(kind):
    """Sixteen outputs of a unit, and what stands behind them."""
    apart = 2 if kind is BlockType.Q6_K else 4 if kind in FLOATS else 0
    return 16 * (GROUP_BYTES.get(kind, 256) + apart)


def fields(**types):
    return tuple(types.items())


class Faults(Structure):
    _fields_ = fields(word=c_void_p, entry=c_uint64)


class Place(Structure):
    _fields_ = (
        ("from_", c_void_p),
        *fields(to=c_void_p, faults=Faults, first=c_int64),
        *fields(outputs=c_int, rows=c_int, width=c_int),
    )


class Source(Structure):
    _fields_ = (
        *fields(codes=c_void_p, scales=c_void_p, row=c_void_p, other=c_void_p),
        *fields(branch_weight=c_void_p, weight=c_void_p, sum=c_void_p, take=c_void_p),
        *fields(branch_entry=c_uint64, sum_entry=c_uint64, norm_entry=c_uint64),
        *fields(width=c_int, kind=c_int, branch_norm=c_int),
        *fields(inverse=c_float, branch_eps=c_float, eps=c_float),
    )


class Quantise(Structure):
    _fields_ = fields(
        source=Source,
        codes=c_void_p,
        scales=c_void_p,
        count=c_void_p,
        faults=c_void_p,
        made=c_void_p,
        together=c_int,
        held=c_int,
    )


class Part(Structure):
    _fields_ = (
        *fields(weights=c_void_p, out=c_void_p, entry=c_uint64),
        *fields(outputs=c_int, format=c_int),
        *fields(base=c_uint32, size=c_uint32, by_cost=c_uint32, spare=c_uint32),
    )


class Split(Structure):
    _fields_ = fields(
        each=c_uint32, rest=c_uint32, by_full=c_uint32, full=c_uint32, last=c_uint32, total=c_uint32
    )


class Matvec(Structure):
    _fields_ = (
        *fields(parts=Part * 4, source=Source, out=c_void_p),
        *fields(act_entry=c_uint64, scale_entry=c_uint64, cap_entry=c_uint64),
        *fields(faults=c_void_p, count=c_void_p, made=c_void_p, split=Split),
        *fields(makers=c_uint32, by_units=c_uint32, pace=c_uint32),
        *fields(scale=c_float, cap=c_float, inverse_cap=c_float),
        *fields(epilogue=c_int, stages=c_int, stage_bytes=c_int),
        *fields(slice=c_int, copies=c_int, pass_=c_int, slots=c_int, table=c_int, handed=c_void_p),
    )


def inverse(divisor):
    return -(-(2**32) // divisor) % 2**32


def up(n, multiple):
    return -(-n // multiple) * multiple


@dataclass
class Weight:
    """A weight in its place on the device, and the file's bytes of it."""

    kind: BlockType
    width: int
    outputs: int
    raw: np.ndarray
    codes: np.ndarray  # u8 [tiles of sixteen outputs][units][bytes of a tile]
    word: np.ndarray

    @property
    def family(self):
        return "grid" if self.kind in FLOATS else str(self.kind.elements)

    @property
    def pitch(self):
        return GROUP_BYTES.get(self.kind, 256)

    @property
    def tile(self):
        return tile_bytes(self.kind)

    @property
    def units(self):
        return -(-self.width // (128 if self.kind in FLOATS else 256))


def place(shim, kind, raw, width, pieces=2, padded=128, seed=0):
    """Through staging, in `pieces`, or as many as there are outputs.

    The outputs are padded to a multiple of `padded`.
    """
    outputs = len(raw)
    rows, grid = up(outputs, padded), kind in FLOATS
    units = -(-width // (128 if grid else 256))
    codes = poisoned((rows // 16, units, tile_bytes(kind)), np.uint8)
    word = device(np.full(1, 2**64 - 1, np.uint64))
    bounds = sorted({outputs * i // pieces for i in range(pieces + 1)})
    for first, last in pairwise(bounds):
        staging = device(raw[first:last])
        count = (rows if last == outputs else last) - first
        argument = Place(
            address(staging), address(codes), Faults(address(word), 7),
            first, last - first, count, width,
        )  # fmt: skip
        work = count * units if grid else count * units * GROUP_BYTES[kind] // 4
        blocks = -(-work // (8 if grid else 256))
        shim.launch(f"place_{kind.name.lower()}", blocks, 256, argument, seed=seed)
    return Weight(kind, width, outputs, raw, codes, word)


def source_of(x, kind=PLAIN, **more):
    """`x` f32 [rows][width] or None; arrays among `more` become addresses."""
    width = more.pop("width", None) or x.shape[1]
    values = {
        name: address(value) if isinstance(value, np.ndarray) else value
        for name, value in more.items()
    }
    inverse = float(np.float32(1.0 / width))
    source = Source(row=address(x), width=width, kind=kind, inverse=inverse, **values)
    source.alive = (x, more)
    return source


def quantised(shim, family, source, count, rows, seed=0, word=None, made=None, together=False):
    """Codes, scales and the fault word of `rows` rows. `made` counts the thread blocks.

    `together`: the same group of all rows side by side.
    """
    width = source.width
    if family == "grid":
        units, blocks, size = -(-width // 128), -(-width // 128), 256
    else:
        units, size = -(-width // 256), 272
        blocks = units * (256 // int(family))
    turn = slice(None, None, -1 if together else 1)
    codes = poisoned((*(rows, units)[turn], size), np.uint8)
    scales = poisoned((rows, blocks)[turn], np.float32)
    n = device(np.array([count], np.int32))
    word = device(np.full(1, 2**64 - 1, np.uint64)) if word is None else word
    made = device(np.zeros(1, np.uint32)) if made is None else made
    before = int(made[0])
    values = (address(codes), address(scales), address(n), address(word), address(made))
    has_weights = source.weight and (not source.branch_norm or source.branch_weight)
    groups = -(-width // 256)
    held = (groups <= 32) * (16 << (groups > 16)) if has_weights and width % 256 == 0 else 0
    argument = Quantise(source, *values, rows if together else 1, held)
    name = "grid_rows" if family == "grid" else f"quantise_{family}"
    if source.kind != PLAIN:
        shared = 2048 * groups + 2592 * held if held else 1024 * groups
        shim.launch(f"norm_{name}", rows, 512, argument, shared=shared, seed=seed)
    else:
        shim.launch(name, (rows, 2), 256, argument, seed=seed)
    assert made[0] - before == rows * (1 if source.kind != PLAIN else 2)
    return codes, scales, word


@dataclass(frozen=True)
class Plan:
    """A launch: `rows` is what the kernel is made for, `count` how many there are."""

    grid: int = 3
    warps: int = 7
    stages: int = 2
    rows: int = 1
    count: int = 1
    seed: int = 0
    slice: int = 0  # batch: units of the rows at a time
    tiles: int = 4  # of a pass
    table: int = 8  # batch: jobs at a time; 0: runs
    copies: int = 12  # batch: slices of the rows at once
    lasts: int = 0  # thread blocks that get less
    late: bool = False  # whether its thread blocks begin when the rows are there
    pace: int = 0  # cycles


def line_of(weights, gated):
    """Tiles and cost of a unit of each part of the line."""
    line = [(-(-w.outputs // 16), w.pitch // 16) for w in weights]
    return [(line[0][0], 1)] if gated else line


def most_pieces(weights, grid, gated):
    line, units = line_of(weights, gated), weights[0].units
    share = -(-sum(tiles * units * cost for tiles, cost in line) // grid)
    return share // (units * min(cost for _, cost in line)) + 2


def shared_bytes(weights, plan, gated):
    """The formula of matvec.cuh."""
    family, units, rows = weights[0].family, weights[0].units, plan.rows
    blocks = units * (8 if family == "32" else 1)
    row_bytes = 256 if family == "grid" else 272
    ring = plan.warps * plan.stages * 2 * max(w.tile for w in weights)
    terms = {"256": units | 1, "32": 8 * units + 4, "grid": 2 * (units | 1)}[family]
    each = 2 if gated else 1
    pieces = 32 * most_pieces(weights, plan.grid - plan.lasts, gated) * each
    held = pieces + rows * plan.tiles * each * 64 * terms + (128 if rows > 1 else 0)
    return ring + rows * units * row_bytes + rows * 4 * up(blocks, 4) + held


def padded(family, size):
    step = {"256": size, "32": 32, "grid": 64}[family]
    return (-(-size // step) | 1) * step


def batch_bytes(weights, plan, gated):
    """The formula of batch.cuh."""
    family, units = weights[0].family, weights[0].units
    blocks = units * (8 if family == "32" else 1)
    row, cut = 256 if family == "grid" else 272, plan.copies * plan.slice < units
    rows = 16 * padded(family, row * (plan.slice if cut else units))
    shared = plan.warps * plan.stages * max(w.tile for w in weights)
    shared += (plan.copies if cut else 1) * rows + 64 * blocks
    shared += 1040 * plan.tiles + 32 * plan.table
    return shared + 16 * most_pieces(weights, plan.grid - plan.lasts, gated) * (2 if gated else 1)


def project(shim, weights, source, plan, batch=False, **more):
    """Outs of every part f32 [plan.rows][outputs] (or the gated one), and the fault word."""
    outs = [poisoned((plan.rows, w.outputs), np.float32) for w in weights]
    word = device(np.full(1, 2**64 - 1, np.uint64))
    n = device(np.array([plan.count], np.int32))
    made, makers = device(np.zeros(1, np.uint32)), 1
    if source.kind != READY:
        family, width = weights[0].family, source.width
        many = (plan.count, plan.rows, plan.seed, word, made)
        together = batch and family == "256"
        codes, scales, _ = quantised(shim, family, source, *many, together=together)
        source, makers = source_of(None, READY, codes=codes, scales=scales, width=width), made[0]
    if not plan.late:
        made[0] = 0
    a = Matvec(source=source, faults=address(word), count=address(n), stages=plan.stages, **more)
    a.made, a.makers = address(made), int(makers)
    gated = a.epilogue in (OUT_SILU, OUT_GELU)
    units = weights[0].units
    a.by_units = inverse(units)
    handed = device(np.zeros((plan.grid, plan.rows, 32), np.uint32))
    a.handed = address(handed)
    a.stage_bytes = (1 if batch else 2) * max(w.tile for w in weights)
    a.slots, a.slice, a.pass_, a.table = plan.tiles, plan.slice, plan.tiles, plan.table
    a.pace, a.copies = plan.pace, plan.copies
    base = 0
    for i, (w, out) in enumerate(zip(weights, outs, strict=True)):
        cost, apart = w.pitch // 16, w.tile // 16 - w.pitch
        values = (address(w.codes), address(out), 20 + i, w.outputs, w.kind.id)
        a.parts[i] = Part(*values, 0 if gated else base, cost | apart << 5, inverse(cost))
        base += cost * -(-w.outputs // 16) * units
    shared_out = -(-weights[0].outputs // 16) * units if gated else base
    full = plan.grid - plan.lasts
    last = shared_out // plan.grid // 2
    even = divmod(shared_out - plan.lasts * last, full)
    a.split = Split(*even, inverse(full), full, last, shared_out)
    if gated:
        outs = [poisoned((plan.rows, weights[0].outputs), np.float32)]
        a.out = address(outs[0])
    family = weights[0].family
    if batch:
        shared = batch_bytes(weights, plan, gated)
        name, block = f"batch_{family}", 32 * (plan.warps + (plan.table > 0))
    else:
        shared = shared_bytes(weights, plan, gated)
        walkers = 1 if plan.rows == 1 else 2
        name, block = f"matvec_{family}_{plan.rows}", 32 * (plan.warps + walkers)
    shim.launch(name, plan.grid, block, a, shared=shared, seed=plan.seed)
    assert made[0] == 0
    assert not handed.any()
    return outs, int(word[0])
