"""Rules of caches and attention."""

from collections.abc import Mapping

from muser.devices.cuda.arena import F32, CachePlane, tiles_of
from muser.devices.cuda.buckets import CHUNK, rows_together
from muser.devices.cuda.card import Address
from muser.devices.cuda.lowering import Lowering
from muser.devices.cuda.stepping import WORD
from muser.devices.cuda.structs import Append, Attend, Combine
from muser.devices.device import Limits
from muser.errors import DeviceError
from muser.graph import Attention, CacheSpec, KvAppend, SigmoidGate
from muser.graph.arithmetic import TILE, attention_constant

SUMS = 16  # bytes: N, M, f(D) and a spare of a tile
PART = 32  # elements of a head that one block of the chain takes
LEAST_HEAD, HEAD_SIZES = 4, (64, 128, 256)
DEEP_SIZES, DEEP_THREADS = (64, 128), 512
MOST_ONE = 128  # elements of a head where a thread block may be of one tile
SPARSE = 1.25  # tiles a multiprocessor, up to which a thread block has one by itself
FEW_TILES, MORE_TILES, MOST_TILES = 8, 24, 72
"""That a row sees at most where a warp has them all at once: bounds of three kernels
(`attention_few.cuh`). Beyond them warps walk in turns.
"""
DEEP_TILES = MORE_TILES
"""That one row sees at most where its tiles are not those of `attention_deep.cuh`."""


def tile_rooms(spec: CacheSpec, limits: Limits, heads: int, rows: int) -> Mapping[str, int]:
    """What the tiles of a few rows leave for the chain over them (`attention_decode.cuh`)."""
    places = rows * heads * tiles_of(spec, limits)
    return {
        "tile_out": places * -(-spec.head_dim // PART) * PART * F32,
        "tile_sums": places * SUMS,
    }


def claims_room(heads: int) -> Mapping[str, int]:
    """By which thread blocks claim tiles (`attention_deep.cuh`); zeros between launches."""
    return {"claims": heads * WORD}


def pieces_room(width: int, rows: int) -> Mapping[str, int]:
    """What warps that walk in turns hand to the one that quantises; zeros between launches."""
    return {"pieces": rows * width * F32}


def kv_append(low: Lowering, op: KvAppend) -> bool:
    cache = low.shared.arena.caches[op.layer]
    spec = cache.spec
    args = Append(
        low.row(op.key),
        low.row(op.value),
        cache.key,
        cache.value,
        cache.steps,
        low.pointers(),
        low.faults(op.node),
        spec.kv_heads,
        spec.head_dim,
        cache.geometry.capacity,
    )
    low.launch("kv_append", (low.rows, spec.kv_heads), 64, args, served=("KV",))
    return True


def gated_attention(low: Lowering, op: Attention, gate: SigmoidGate) -> bool:
    if not op.target == gate.source == gate.target:
        return False
    return _attend(low, op, gate)


def attention(low: Lowering, op: Attention) -> bool:
    return _attend(low, op, None)


def _attend(low: Lowering, op: Attention, gate: SigmoidGate | None) -> bool:
    cache = low.shared.arena.caches[op.layer]
    limits, dim = low.shared.limits, cache.spec.head_dim
    is_chunk = low.bucket == CHUNK
    rooms = tile_rooms(cache.spec, limits, op.heads, low.rows)
    nodes = (op.node,) if gate is None else (op.node, gate.node)
    args = Attend(
        low.row(op.query),
        0 if gate is None else low.row(gate.gate),
        low.row(op.target),
        cache.key,
        cache.value,
        cache.steps,
        *((0, 0) if is_chunk else low.shared.rooms(rooms)),
        *low.shared.rooms(claims_room(op.heads)),
        low.pointers(),
        low.faults(*nodes),
        float(attention_constant(op.scale)),
        op.heads,
        cache.spec.kv_heads,
        dim,
        20 - (dim - 1).bit_length(),
        cache.geometry.capacity,
        cache.spec.window or 0,
        tiles_of(cache.spec, limits),
    )
    if is_chunk:
        _prefill(low, op, cache, args)
    else:
        _decode(low, op, cache, args, nodes)
    return True


def _decode(
    low: Lowering, op: Attention, cache: CachePlane, args: Attend, nodes: tuple[str, ...]
) -> None:
    """Where rows see few tiles, no more thread blocks than those: all have to begin before the next
    launch can, and they find room only where the projection before them has ended. Where they are
    about as many as multiprocessors, none has two, which would share its way to memory: they take
    more than half of its shared memory each. Of one tile at most, they have a kernel of their own,
    and so have those of one row that sees many.
    """
    head = head_size(cache.spec.head_dim)
    units = cache.spec.kv_heads * -(-op.heads // cache.spec.kv_heads // 16)
    seen = most_tiles(low, args.places)
    most = low.rows * units * seen
    is_deep = _is_deep(low, cache, units, seen)
    is_alone = most <= SPARSE * low.processors
    grid = low.processors if is_alone else 2 * low.processors
    is_one = most <= grid and head <= MOST_ONE and (is_alone or seen <= FEW_TILES)
    tiles = f"decode_{'deep' if is_deep else 'one' if is_one else 'tiles'}_{head}"
    shared = low.bytes_of(tiles)
    if is_alone:
        shared = max(shared, low.shared.card.facts.shared // 2 + 1024)
    low.launch(
        tiles,
        (low.processors // units * units if is_deep else min(most, grid),),
        DEEP_THREADS if is_deep else 256,
        args,
        shared=shared,
        served=("KV",),
        caches=(op.layer,),
    )
    chain = (op.heads, low.rows, -(-cache.spec.head_dim // PART))
    args = Attend.from_buffer_copy(args)
    args.faults = low.faults(*nodes)
    low.launch(
        "decode_combine", chain, 256, args, shared=low.bytes_of("decode_combine"), served=("KV",)
    )


def _is_deep(low: Lowering, cache: CachePlane, units: int, seen: int) -> bool:
    """Whether the tiles are those of `attention_deep.cuh`."""
    dim, facts = cache.spec.head_dim, low.shared.card.facts
    return (
        low.rows == 1
        and dim in DEEP_SIZES
        and seen > DEEP_TILES
        and units <= facts.processors
        and low.bytes_of(f"decode_deep_{dim}") <= facts.shared
    )


def most_tiles(low: Lowering, places: int) -> int:
    """That a row of such a step sees at most, of a layer that shows `places`."""
    return min(places, -(-low.reach // TILE))


def combine_quantised(
    low: Lowering, row: Address, codes: Address, scales: Address, made: Address
) -> bool:
    """Lets the chain over tiles, if that was the last launch and made `row`, quantise it in blocks
    of 256, too. Whether it does.
    """
    last = low.launches[-1] if low.launches else None
    if last is None or not last.label.startswith("decode_combine"):
        return False
    args = last.args
    if not isinstance(args, Attend) or args.out != row or args.dim % PART:
        return False
    low.launches.pop()
    assert all(at <= len(low.launches) for _, at in low.entries)  # no later launch's
    width = args.heads * args.dim
    (pieces,) = low.shared.rooms(pieces_room(width, low.rows))
    kernel, piece = _chain_of(most_tiles(low, args.places))
    args = Combine(args, codes, scales, made, rows_together(low.bucket, 256), pieces)
    low.launch(kernel, (-(-width // piece), low.rows), 256, args, served=("KV",))
    return True


def _chain_of(tiles: int) -> tuple[str, int]:
    """The kernel for rows that see at most so many, and how many elements a block of it makes."""
    for most, name in (
        (FEW_TILES, "combine_256"),
        (MORE_TILES, "combine_more_256"),
        (MOST_TILES, "combine_most_256"),
    ):
        if tiles <= most:
            return name, 256
    return "combine_turns_256", PART


def _prefill(low: Lowering, op: Attention, cache: CachePlane, args: Attend) -> None:
    head, ratio = head_size(cache.spec.head_dim), op.heads // cache.spec.kv_heads
    queries, units = max(1, 16 // ratio), cache.spec.kv_heads * -(-ratio // 16)
    kernel, block = f"prefill_wide_{head}", 384
    grid: tuple[int, ...] = (-(-low.rows // (8 * queries)), units)
    if not low.shared.pipelines.has(kernel):
        kernel, block = f"prefill_{head}", 128
        grid = (-(-low.rows // (4 * queries)), units, max(1, head // 128))
    shared = low.bytes_of(kernel)
    low.launch(kernel, grid, block, args, shared=shared, served=("KV",), caches=(op.layer,))


def head_size(dim: int) -> int:
    """The least head size that has a kernel. Raises `DeviceError` where there is none.

    Query codes of G(q, 20 − ⌈log2 d⌉, −60) are two digits base 128, each exact in f16: below four
    elements the high one would not be.
    """
    for size in HEAD_SIZES:
        if LEAST_HEAD <= dim <= size:
            return size
    raise DeviceError(
        f"This model has attention heads of {dim} elements; the CUDA device takes"
        f" {LEAST_HEAD} to {HEAD_SIZES[-1]}.",
        "Use --device oracle, or a model with other heads.",
    )
