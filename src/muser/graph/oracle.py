"""Every operator of `docs/arithmetic.md` as one plain NumPy function, for any number of rows.

Nothing compiled of ours is imported: kernels are tested against this page by equality. Integer
sums go through float64 products, exact below 2^53 in any order. Activations are `[rows, width]`.
Each function raises `ArithmeticFault` where a value that must be finite is not.
"""

import numpy as np
from numpy.typing import NDArray

from muser.errors import ArithmeticFault
from muser.formats import FLOATS, BlockType, Unpacked, dequantise, unpack
from muser.graph.arithmetic import (
    F32,
    F64,
    GRID_BLOCK,
    I64,
    KV_GRID,
    ROW_GRID,
    TILE,
    WEIGHT_GRID,
    attention_constant,
    exp2_fraction,
    fma,
    gelu,
    grid_rows,
    is_finite,
    lane_sum_of_squares,
    order_keys,
    power_of_two,
    quantise_rows,
    sigmoid,
    silu,
    tanh,
    to_f32,
    z,
)
from muser.graph.ops import Activation, Pairing


def check(x: F32, what: str) -> F32:
    """`x`, or the fault that names what became infinite or NaN."""
    finite = is_finite(x)
    if not bool(np.all(finite)):
        row = int(np.argwhere(~finite)[0][0]) if finite.ndim else 0
        raise ArithmeticFault(
            f"{what} of row {row} is not a finite number.",
            "The weights or the prompt drive this model out of range; no answer is given.",
        )
    return x


def store(x: F32, what: str) -> F32:
    """What every operator does with a result: z, then the test for finite."""
    return check(z(x), what)


def embed(block_type: BlockType, raw: NDArray[np.uint8]) -> F32:
    """The file's values of the chosen rows; `raw` is uint8 `[rows, row bytes]`."""
    return store(dequantise(block_type, raw), "embedding")


def rms_norm(x: F32, weight: F32 | None, eps: float) -> F32:
    """x / sqrt(mean(x²) + eps), times weight: `(x·r)·w`, never rsqrt."""
    total = check(lane_sum_of_squares(x), "the sum of a norm")
    mean = fma(total, np.float32(1.0 / x.shape[-1]), np.float32(eps))
    r = np.float32(1) / np.sqrt(mean).astype(np.float32)
    scaled = x * r[..., None]
    return store(scaled if weight is None else scaled * weight, "norm")


def head_norm(x: F32, weight: F32 | None, heads: int, eps: float) -> F32:
    rows = x.shape[0]
    return rms_norm(x.reshape(rows, heads, -1), weight, eps).reshape(rows, -1)


def project(x: F32, block_type: BlockType, raw: NDArray[np.uint8]) -> F32:
    """x `[rows, in]` times the weight rows `raw` uint8 `[out, row bytes]`; `[rows, out]`."""
    if block_type in FLOATS:
        return project_grid(x, *weight_grid(block_type, raw))
    return project_blocks(x, unpack(block_type, raw))


def block_products(q: I64, w: I64) -> F64:
    """Σ over the last axis for every block: `[blocks, rows, out]`, exact integers in f64."""
    left = np.moveaxis(q, 1, 0).astype(np.float64)
    right = np.moveaxis(w, 1, 0).astype(np.float64)
    return np.asarray(left @ right.transpose(0, 2, 1))


def project_blocks(x: F32, weight: Unpacked) -> F32:
    """Quantised weights: t_b per block, then the one serial chain of fma."""
    q, s = quantise_rows(x, weight.codes.shape[2])
    blocks = weight.codes.shape[1]
    codes = weight.codes.astype(np.int64)
    if weight.scales is not None:
        codes = codes * np.repeat(weight.scales, codes.shape[2] // weight.scales.shape[2], axis=2)
    dots = to_f32(block_products(q, codes))
    sums = None
    if weight.mins is not None:
        groups = weight.mins.shape[2]
        grouped = q.reshape(*q.shape[:2], groups, -1).sum(axis=3)
        sums = to_f32(block_products(grouped, weight.mins.astype(np.int64)))
    total = np.zeros((x.shape[0], weight.codes.shape[0]), np.float32)
    for b in range(blocks):
        d = weight.d[:, b]
        if weight.offset is not None:
            row_sum = to_f32(q[:, b].sum(axis=1))[:, None]
            term = fma(d, dots[b], weight.offset[:, b] * row_sum)
        elif sums is not None and weight.dmin is not None:
            term = fma(d, dots[b], -(weight.dmin[:, b] * sums[b]))
        else:
            term = d * dots[b]
        total = fma(s[:, b, None], check(term, "a block of a projection"), total)
    return store(total, "projection")


def weight_grid(block_type: BlockType, raw: NDArray[np.uint8]) -> tuple[I64, I64]:
    """Float weights on their grid: codes `[out, blocks, 128]` (zero padded) and steps."""
    return grid_rows(_in_grid_blocks(z(dequantise(block_type, raw))), *WEIGHT_GRID)


def project_grid(x: F32, codes: I64, steps: I64) -> F32:
    """Float weights: both sides on a grid per 128, one fma a block."""
    n, e = grid_rows(_in_grid_blocks(x), *ROW_GRID)
    dots = to_f32(block_products(n, codes))
    total = np.zeros((x.shape[0], codes.shape[0]), np.float32)
    for b in range(codes.shape[1]):
        scale = power_of_two(e[:, b, None] + steps[None, :, b])
        total = fma(dots[b], scale, total)
    return store(total, "projection")


def _in_grid_blocks(x: F32) -> F32:
    short = -x.shape[1] % GRID_BLOCK
    return np.pad(x, ((0, 0), (0, short))).reshape(x.shape[0], -1, GRID_BLOCK)


def rope(x: F32, table: F32, heads: int, pairing: Pairing) -> F32:
    """Rotate each head by `table` f32 `[rows, rotated/2, 2]` (cos, sin); the rest passes."""
    rows, rotated = x.shape[0], 2 * table.shape[1]
    split = x.reshape(rows, heads, -1)
    head = split[:, :, :rotated]
    cos, sin = table[:, None, :, 0], table[:, None, :, 1]
    if pairing is Pairing.INTERLEAVED:
        first, second = head[..., 0::2], head[..., 1::2]
    else:
        first, second = head[..., : rotated // 2], head[..., rotated // 2 :]
    turned = (fma(first, cos, -(second * sin)), fma(first, sin, second * cos))
    out = split.copy()
    if pairing is Pairing.INTERLEAVED:
        out[:, :, 0:rotated:2], out[:, :, 1:rotated:2] = turned
    else:
        out[:, :, :rotated] = np.concatenate(turned, axis=2)
    return store(out.reshape(rows, -1), "rope")


def snap_kv(x: F32, kv_heads: int) -> NDArray[np.float16]:
    """K or V rows as stored: per row and head n·2^e, an exact f16; `[rows, kv heads, dim]`."""
    n, e = grid_rows(x.reshape(x.shape[0], kv_heads, -1), *KV_GRID)
    value = np.ldexp(n.astype(np.float64), e[..., None].astype(np.int32))
    if bool(np.any(np.abs(value) > 65504)):
        check(np.full((1, 1), np.inf, np.float32), "a stored K or V value")
    return value.astype(np.float16)


def attention(
    q: F32,
    keys: NDArray[np.float16],
    values: NDArray[np.float16],
    visible: NDArray[np.int64],
    scale: float,
) -> F32:
    """Grid attention over absolute tiles of 128 positions.

    q f32 `[rows, heads, d]`; keys and values f16 `[positions, kv heads, d]` from position 0;
    visible int64 `[rows, 2]`: first and one past the last visible position; f32 `[rows, heads·d]`.
    """
    rows, heads, dim = q.shape
    kv = keys.shape[1]
    qi, eq = grid_rows(q, 20 - int(dim - 1).bit_length(), -60)
    query = qi.reshape(rows, kv, heads // kv, dim), eq.reshape(rows, kv, heads // kv)
    c = attention_constant(scale)
    state = None
    first, last = int(visible[:, 0].min()), int(visible[:, 1].max())
    for t in range(first // TILE, (last + TILE - 1) // TILE):
        span = np.arange(t * TILE, min((t + 1) * TILE, len(keys)))
        seen = (span >= visible[:, :1]) & (span < visible[:, 1:])
        tile = _attend_tile(query, keys[span], values[span], seen, c)
        state = _merge(state, tile, np.asarray(seen.any(axis=1)))
    assert state is not None
    R, X, den, acc = state
    check(den, "the weight sum of an attention")
    result = (check(acc, "attention") / den[..., None]) * power_of_two(X - R + 8)[..., None]
    return store(result.reshape(rows, heads * dim), "attention")


_State = tuple[I64, I64, F32, F32]


def _attend_tile(
    query: tuple[I64, I64],
    keys: NDArray[np.float16],
    values: NDArray[np.float16],
    seen: NDArray[np.bool_],
    c: np.float32,
) -> _State:
    """N, M, f(D) and z(f(O)) of one tile: `[rows, kv, group]` and `[rows, kv, group, d]`."""
    qi, eq = query
    ki, ek = grid_rows(keys.astype(np.float32), *KV_GRID)
    vi, ev = grid_rows(values.astype(np.float32), *KV_GRID)
    dots = np.einsum("rkgd,nkd->rkgn", qi.astype(np.float64), ki.astype(np.float64))
    step = power_of_two(eq[..., None] + ek.T[None, :, None, :])
    y = to_f32(dots) * (c * step)
    mask = np.broadcast_to(seen[:, None, None, :], y.shape)
    if bool(np.any((np.abs(y) >= np.float32(2.0**22)) & mask)):
        check(np.full((1, 1), np.inf, np.float32), "an attention score")
    floor = np.floor(y)
    g = exp2_fraction((y - floor).astype(np.float32)).astype(np.float64)
    n = floor.astype(np.int64)
    far = np.int64(-(2**40))
    N = np.where(mask, n, far).max(axis=3)
    with_v = n + ev.T[None, :, None, :]
    M = np.where(mask, with_v, far).max(axis=3)
    D = _weights(g, 20 + n - N[..., None], mask).sum(axis=3)
    P = _weights(g, 12 + with_v - M[..., None], mask)
    O = np.einsum("rkgn,nkd->rkgd", P, vi.astype(np.float64))  # noqa: E741
    return N, M, to_f32(D), z(to_f32(O))


def _weights(g: F64, shift: I64, mask: NDArray[np.bool_]) -> F64:
    """rne(g·2^shift) of the visible rows, zero elsewhere; far shifts round to zero."""
    bounded = np.maximum(np.where(mask, shift, -40), -40).astype(np.int32)
    return np.where(mask, np.rint(np.ldexp(g, bounded)), 0.0)


def _merge(state: _State | None, tile: _State, any_seen: NDArray[np.bool_]) -> _State:
    """One float step a tile; rows that see nothing of the tile keep their state."""
    N, M, D, O = tile  # noqa: E741
    if state is None:
        empty = ~any_seen
        D = np.where(empty[:, None, None], np.float32(0), D)
        O = np.where(empty[:, None, None, None], np.float32(0), O)  # noqa: E741
        return N, M, D, O
    R, X, den, acc = state
    R2, X2 = np.maximum(R, N), np.maximum(X, M)
    grown = den * _shift(R - R2) + D * _shift(N - R2)
    moved = z(acc * _shift(X - X2)[..., None]) + z(O * _shift(M - X2)[..., None])
    fresh = (den == 0)[..., None]
    grown = np.where(den == 0, D, grown)
    moved = np.where(fresh, O, moved)
    keep = ~any_seen[:, None, None]
    return (
        np.where(keep, R, R2),
        np.where(keep, X, X2),
        np.where(keep, den, grown),
        np.where(keep[..., None], acc, moved),
    )


def _shift(k: I64) -> F32:
    return power_of_two(np.maximum(k, -100))


def sigmoid_gate(x: F32, gate: F32) -> F32:
    return store(x * sigmoid(gate), "gate")


def gated_act(gate: F32, up: F32, activation: Activation) -> F32:
    act = silu(gate) if activation is Activation.SILU else gelu(gate)
    return store(act * up, "activation")


def add(left: F32, right: F32) -> F32:
    return store(left + right, "sum")


def scale(x: F32, factor: float) -> F32:
    return store(x * np.float32(factor), "scale")


def softcap(x: F32, cap: float) -> F32:
    """cap·tanh(x / cap), the quotient as a product with f32(1/cap)."""
    inverse = np.float32(1.0 / float(np.float32(cap)))
    return store(np.float32(cap) * tanh(x * inverse), "softcap")


def argmax(logits: F32) -> NDArray[np.int64]:
    """The id of the largest stored logit of each row, ties to the lower id."""
    return np.asarray(order_keys(logits).argmax(axis=-1), np.int64)
