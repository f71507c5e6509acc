"""KV rows and attention of the CUDA texts, by the shim, against the oracle: every bit."""

import numpy as np
import pytest

from muser.errors import ArithmeticFault
from muser.graph import conformance, oracle
from muser.graph.arithmetic import power_of_two, z

from ..bench import same_bits
from .layer import (
    CHAINS,
    TEXTS,
    Attend,
    Layer,
    bytes_of,
)
from .shim import address, device, poisoned

ROUTES = ("decode", "prefill", "wide", "deep")
SHAPES = (
    # heads, kv heads, dim, window
    (16, 1, 128, None),
    (4, 1, 128, 129),
    (9, 3, 64, None),
    (8, 8, 64, 100),
    (6, 2, 256, None),
    (2, 1, 256, 256),
    (20, 1, 8, None),
    (24, 3, 16, 1),
    (4, 2, 40, 300),
    (3, 1, 96, None),
    (2, 2, 20, 150),
    (1, 1, 255, None),
    (2, 1, 4, None),
    (5, 1, 200, 8),
)
ENDS = (1, 2, 127, 128, 129, 256, 300, 301, 385, 512, 640, 700)


@pytest.fixture(params=("sm_80", "sm_90a"))
def shim(shims, request):
    return shims(request.param, *TEXTS)


def rows_of(rng, count, layer):
    q = rng.standard_normal((count, layer.heads * layer.dim)).astype(np.float32)
    k, v = (
        rng.standard_normal((count, layer.kv_heads * layer.dim)).astype(np.float32)
        for _ in range(2)
    )
    v *= np.float32(2) ** rng.integers(-9, 5, (count, 1)).astype(np.float32)
    k[count // 3] = 0
    v[count // 2] = 0
    q[count // 4] = 0
    return q, k, v


def skip_what_is_not_there(layer, route):
    if route == "wide" and layer.shim.architecture != "sm_90a":
        pytest.skip("no warpgroups")
    if route == "wide" and layer.dim > 128:
        pytest.skip("warpgroups take heads of up to 128")
    if route == "deep" and layer.dim not in (64, 128):
        pytest.skip("decode_deep has heads of 64 and 128, decode_tiles the others")


def compare(layer, route, q, positions, slots=None, **more):
    slots = [0] * len(positions) if slots is None else slots
    skip_what_is_not_there(layer, route)
    expected = layer.expected(q, positions, slots, more.get("gate"))
    actual = layer.attend(route, q, positions, slots, **more)
    assert layer.faulty_row is None
    assert same_bits(expected, actual), (route, positions, np.argwhere(expected != actual)[:5])


@pytest.mark.parametrize(("heads", "kv", "dim", "window"), SHAPES)
def test_equals_the_oracle_at_any_position(shim, rng, heads, kv, dim, window):
    """A step appends up to `ENDS` and asks for its last rows; rings of small windows wrap."""
    layer = Layer(shim, heads, kv, dim, window, chunk=128)
    q, k, v = rows_of(rng, 700, layer)
    first = 0
    for turn, end in enumerate(ENDS):
        while first < end:
            span = list(range(first, min(end, first + 128)))
            layer.append(k[span], v[span], span, [0] * len(span), spare=turn % 2)
            first += len(span)
        few = list(range(max(end - 1 - turn % 3, 0), end))
        blocks = (1 + turn * 2) << 5 * (turn % 2)  # every other turn one for each tile
        for route in ("decode", *CHAINS) if dim % 32 == 0 else ("decode",):
            compare(layer, route, q[few], few, spare=turn % 3, blocks=blocks)
        if dim in (64, 128) and turn % 3 == 2:
            compare(layer, "deep", q[few], few, blocks=blocks)
        many = list(range(max(end - 21, 0), end))
        compare(layer, "prefill", q[many], many, spare=turn)
        if dim <= 128 and shim.architecture == "sm_90a":
            compare(layer, "wide", q[many], many, spare=turn)
    where = np.arange(max(0, 700 - layer.capacity), 700)
    stored = layer.k[0][:, where % layer.capacity].swapaxes(0, 1)
    assert same_bits(stored.view(np.uint16), layer.keys[0, where].view(np.uint16))


@pytest.mark.parametrize("route", CHAINS)
@pytest.mark.parametrize(
    ("heads", "kv", "dim", "window"), [s for s in SHAPES if s[2] % 32 == 0] + [(7, 1, 32, 400)]
)
def test_what_few_tiles_make_is_quantised(shim, rng, seed, route, heads, kv, dim, window):
    """By one launch, up to its last position; rows beyond the count stay as they are."""
    layer = Layer(shim, heads, kv, dim, window, context=1024, chunk=128)
    layer.seed, layer.together = seed, heads % 2 == 1
    q, k, v = rows_of(rng, 1024, layer)
    for first in range(0, 1024, 128):
        span = list(range(first, first + 128))
        layer.append(k[span], v[span], span, [0] * 128)
    at = [1023, 5, 512] if window is None else [1023, 1000, 1021]
    gate = rng.standard_normal(q[at].shape).astype(np.float32) if heads % 2 else None
    compare(layer, route, q[at], at, gate=gate, spare=1)
    codes, scales = layer.quantised
    rows = np.zeros((3, codes.shape[1] * 256), np.float32)
    rows[:, : heads * dim] = layer.expected(q[at], at, [0] * 3, gate)
    expected, steps = oracle.quantise_rows(rows, 256)
    whole = expected.reshape(3, -1).astype(np.int64)
    assert np.array_equal(codes[:3, :, :256].view(np.int8).reshape(3, -1), whole)
    sums = np.ascontiguousarray(codes[:3, :, 256:]).view(np.int16).reshape(3, -1)
    assert np.array_equal(sums, whole.reshape(3, -1, 32).sum(axis=2))
    assert same_bits(scales[:3], steps)
    assert np.all(codes[3] == 0xFF)


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize(
    ("heads", "kv", "dim", "window"), [s for s in SHAPES if s[2] in (64, 128)] + [(20, 1, 64, 900)]
)
def test_tiles_that_are_claimed(shim, rng, seed, heads, kv, dim, window, blocks):
    """Up to nine tiles, of which the sides of a unit have four, eight or twelve without a claim."""
    layer = Layer(shim, heads, kv, dim, window, context=1100, chunk=128)
    layer.seed = seed
    q, k, v = rows_of(rng, 1100, layer)
    for first in range(0, 1100, 100):
        span = list(range(first, first + 100))
        layer.append(k[span], v[span], span, [0] * 100)
    at = [1099, 1098] if window else [1099, 255, 256, 640, 900]
    compare(layer, "deep", q[at], at, blocks=blocks)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("vector", conformance.ATTENTION, ids=str)
def test_digests(shim, route, vector):
    window = vector.last - vector.first if vector.first else None
    layer = Layer(shim, 4, 1, vector.dim, window, context=vector.count, chunk=vector.count)
    positions = list(range(vector.count))
    layer.append(vector.keys(), vector.values(), positions, [0] * vector.count)
    skip_what_is_not_there(layer, route)
    out = layer.attend(route, vector.query().reshape(1, -1), [vector.last - 1], [0])
    assert layer.faulty_row is None
    assert conformance.digest(out) == vector.digest


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("window", [None, 200])
def test_slots_do_not_meet(shim, rng, seed, route, window):
    """Rows of three sequences at their own positions; two of one sequence stand apart."""
    layer = Layer(shim, 4, 2, 64, window, slots=4, context=512, chunk=128)
    layer.seed = seed
    q, k, v = rows_of(rng, 400, layer)
    for slot, count in ((2, 300), (0, 129), (3, 5)):
        turned = np.roll(np.arange(400), slot)
        for first in range(0, count, 100):
            span = list(range(first, min(first + 100, count)))
            at = turned[span]
            layer.append(k[at], v[at], span, [slot] * len(span))
    positions = [299, 128, 127, 4, 3, 298, 297, 126]
    slots = [2, 0, 0, 3, 3, 2, 2, 0]
    compare(layer, route, q[: len(slots)], positions, slots, spare=2)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("heads", "kv", "dim"), [(9, 3, 64), (16, 1, 128), (2, 1, 256)])
def test_scores_far_apart(shim, rng, route, heads, kv, dim):
    """Weights vanish, shifts are cut, z acts: in some rows and not in their neighbours."""
    layer = Layer(shim, heads, kv, dim, context=512, chunk=512)
    q, k, v = rows_of(rng, 500, layer)
    tile = np.arange(500)[:, None] // 128
    q *= np.float32(2) ** rng.integers(-3, 5, (500, 1)).astype(np.float32)
    k *= np.where(tile % 2 == 1, np.float32(32), np.float32(1))
    v *= np.where(tile == 1, np.float32(2.0**-12), np.float32(1))
    layer.append(k, v, list(range(500)), [0] * 500)
    for end in (257, 400, 500):
        many = list(range(end - 8, end))
        compare(layer, route, q[many], many)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("scores", [(70, 20, 0), (20, 70, 0), (0, 75, 30)], ids=str)
def test_what_z_drops_between_tiles(shim, rng, route, scores):
    """Where the values of the largest score are zeros, the next tile is 50 binades below it and
    shows in the output, and the third, 70 below, would change its last bits but for z."""
    last, dim = 380, 64
    layer = Layer(shim, 2, 1, dim, context=last, chunk=last)
    q, k = np.zeros((last, 2 * dim), np.float32), np.zeros((last, dim), np.float32)
    q[:, ::dim] = 8
    q[370, ::dim] = 4
    k[:, 0] = np.repeat(scores, 128)[:last] / (8 * dim**-0.5 * np.log2(np.e))
    v = (rng.standard_normal((last, dim)) * 2.0**13).astype(np.float32)
    top = 128 * int(np.argmax(scores))
    v[top : top + 128, : dim // 2] = 0
    k[top + 1 : top + 128] = 0
    layer.append(k, v, list(range(last)), [0] * last)
    many = list(range(366, last))
    compare(layer, route, q[many], many)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dim", [40, 128])
def test_the_gate_that_may_follow(shim, rng, route, dim):
    layer = Layer(shim, 4, 2, dim)
    q, k, v = rows_of(rng, 140, layer)
    layer.append(k, v, list(range(140)), [0] * 140)
    gate = (rng.standard_normal((3, 4 * dim)) * 40).astype(np.float32)
    compare(layer, route, q[137:], [137, 138, 139], gate=gate)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_largest_sums(shim, route, dim):
    """Every code at its bound: sums of one accumulator stay below 2^24."""
    layer = Layer(shim, 16, 1, dim, context=256, chunk=256)
    sign = np.where(np.arange(dim) % 2, -1, 1).astype(np.float32)
    k = np.tile(np.float32(2047 * 2.0**-13) * sign, (256, 1))
    v = np.tile(np.float32(2047 * 2.0**-11) * sign[::-1], (256, 1))
    v[1::2] *= -1
    top = 2.0 ** (20 - int(dim - 1).bit_length()) - 1
    q = np.full((2, 16, dim), top * 2.0**-16, np.float32)
    q[:, 1::3] *= sign
    q[:, 2::3] = 64 * 2.0**-16
    q[:, 2::3, 0] = top * 2.0**-16
    layer.append(k, v, list(range(256)), [0] * 256)
    compare(layer, route, q.reshape(2, -1), [254, 255])


@pytest.mark.parametrize("route", ROUTES)
def test_a_score_out_of_range_fails_its_row(shim, route):
    layer = Layer(shim, 6, 2, 64)
    rows = np.ones((200, 2 * 64), np.float32)
    layer.append(rows * np.float32(2.0**10), rows, list(range(200)), [0] * 200)
    q, positions = np.ones((9, 6 * 64), np.float32), list(range(191, 200))
    compare(layer, route, q, positions)
    q[4, 5 * 64 :] *= np.float32(-(2.0**20))
    layer.attend(route, q, positions, [0] * 9)
    assert layer.faulty_row == (0 if route == "deep" else 4)  # which does row by row


@pytest.mark.parametrize("route", ROUTES)
def test_what_a_row_may_not_see_cannot_fail_it(shim, rng, route):
    layer = Layer(shim, 2, 1, 64, window=20, context=128)
    q, k, v = rows_of(rng, 128, layer)
    k[[9, 90]] = 60000
    q *= np.float32(2.0**12)
    layer.append(k, v, list(range(128)), [0] * 128)
    assert np.abs(q[60].reshape(2, 64) @ k[[9, 90]].T).min() > 2.0**22 * 8  # faults, if seen
    compare(layer, route, q[60:61], [60])


def test_a_value_beyond_half_fails_the_row(shim):
    layer = Layer(shim, 1, 1, 64)
    rows = np.ones((3, 64), np.float32)
    rows[2, 5] = 65520  # the grid's largest is 65504
    layer.append(rows, rows, [0, 1, 2], [0] * 3)
    assert layer.faulty_row is None
    for wrong in (70000, np.inf):
        rows[2, 5] = wrong
        with pytest.raises(ArithmeticFault):
            layer.append(np.ones_like(rows), rows, [0, 1, 2], [0] * 3)
        assert layer.faulty_row == 2
        layer.fault[0] = 2**64 - 1


@pytest.mark.parametrize(("dim", "window"), [(64, None), (20, 30)])
def test_rows_go_out_and_come_back(shim, rng, seed, dim, window):
    """Exported rows are the stored ones; imported ones are snapped, and snapping twice is once."""
    layer = Layer(shim, 2, 2, dim, window, slots=2)
    layer.seed = seed
    _, k, v = rows_of(rng, 300, layer)
    for first in range(0, 300, 50):
        span = list(range(first, first + 50))
        layer.append(k[span], v[span], span, [1] * 50)
    out = [poisoned((60, 2, dim), np.float16) for _ in range(2)]
    layer.copy("kv_export", *out, slot=1, first=240)
    assert same_bits(out[0].view(np.uint16), layer.keys[1, 240:300].view(np.uint16))
    assert same_bits(out[1].view(np.uint16), layer.values[1, 240:300].view(np.uint16))
    layer.copy("kv_import", *out, slot=0, first=240)
    assert same_bits(
        layer.k[0].view(np.uint16)[:, 240 % layer.capacity],
        layer.k[1].view(np.uint16)[:, 240 % layer.capacity],
    )
    where = np.arange(240, 300) % layer.capacity
    for plane in (layer.k.view(np.uint16), layer.v.view(np.uint16), layer.v_steps):
        assert same_bits(plane[0][:, where], plane[1][:, where])
    foreign = device(rng.standard_normal((7, 2, dim)).astype(np.float16))
    foreign[0, 0, 3] = 2.0**-20
    layer.copy("kv_import", foreign, foreign, slot=0, first=250)
    assert layer.faulty_row is None
    snapped = oracle.snap_kv(foreign.reshape(7, -1).astype(np.float32), 2).swapaxes(0, 1)
    assert same_bits(layer.k[0][:, where[10:17]], np.ascontiguousarray(snapped))
    foreign[5, 1, 0] = np.inf
    layer.copy("kv_import", foreign, foreign, slot=0, first=250)
    assert layer.faulty_row == 5


def chain(N, M, D, O):  # noqa: N803, E741
    """Section 7's chain over tiles: arrays `[tiles]` and `[tiles, dim]`."""
    state = None
    for n, m, d, o in zip(N, M, D, O, strict=True):
        tile = tuple(np.asarray(x)[None, None, None] for x in (n, m, d, z(o)))
        state = oracle._merge(state, tile, np.ones(1, bool))
    R, X, den, acc = state
    return z((acc / den[..., None]) * power_of_two(X - R + 8)[..., None])[0, 0, 0]


MANY = (1, 7, 8, 9, 23, 24, 25, 49, 71, 72, 128, 192, 193, 513, 1100, 1600)
MOST = {
    "decode_combine": MANY[-1],
    CHAINS["more"]: 24,
    CHAINS["most"]: 72,
    CHAINS["turns"]: MANY[-1],
}


@pytest.mark.parametrize("reach", [8, 60])
@pytest.mark.parametrize(
    ("kernel", "tiles"), [(kernel, n) for kernel, most in MOST.items() for n in MANY if n <= most]
)
def test_the_chain_over_many_tiles(shims, rng, seed, kernel, tiles, reach):
    """Made-up tiles; with a reach of 60 binades z acts in most pieces."""
    shim, heads, dim = shims("sm_80", *TEXTS), 2, 40 if kernel == "decode_combine" else 64
    shape = (1, heads, tiles)
    sums = np.zeros((*shape, 4), np.int32)
    sums[..., 0] = rng.integers(-reach, reach, shape) - 3
    sums[..., 1] = sums[..., 0] + rng.integers(-20, 5, shape)
    D = rng.integers(2**20, 2**27, shape).astype(np.float32)
    sums[..., 2] = D.view(np.int32)
    O = rng.integers(-(2**31) + 1, 2**31, (1, heads, 2, tiles, 32)).astype(np.float32)  # noqa: E741
    O[:, :, :, rng.random(tiles) < 0.2] = 0
    sums, O, out = device(sums), device(O), poisoned((1, heads * dim), np.float32)  # noqa: E741
    layer = Layer(shim, heads, 1, dim, context=tiles * 128)
    kept, step = layer.step([tiles * 128 - 1], [0])
    argument = Attend(
        tile_out=address(O), tile_sums=address(sums), out=address(out), **step,
        **layer.faults(), heads=heads, **layer.sizes(), places=tiles,
    )  # fmt: skip
    if kernel == "decode_combine":
        shim.launch(kernel, (heads, 1, 2), 256, argument, bytes_of(shim, kernel), seed)
    else:
        layer.combine_quantised(kernel, 1, argument)
    for head in range(heads):
        parts = O[0, head].swapaxes(0, 1).reshape(tiles, -1)[:, :dim]
        N, M = (sums[0, head, :, i].astype(np.int64) for i in range(2))
        want = chain(N, M, D[0, head], parts)
        assert same_bits(want, out[0, head * dim : (head + 1) * dim])
    del kept
