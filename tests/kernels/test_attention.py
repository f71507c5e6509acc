"""kv_append and attention against the oracle: rings, windows, slots, head sizes, groups."""

import numpy as np
import pytest

from muser.devices import Limits
from muser.errors import ArithmeticFault, DeviceError
from muser.graph import Attention, CacheSpec, KvAppend, oracle
from muser.kernels import bucket_of

from .bench import Bench, random_rows, same_bits, step_of

CONTEXT = 300


def bench_of(library, threads, heads, kv, dim, window, slots=1, chunk=64, context=CONTEXT):
    ops = [
        KvAppend("k", "v", 0, "kv"),
        Attention("q", "y", 0, heads, dim**-0.5, "attention"),
    ]
    rows = {"q": heads * dim, "k": kv * dim, "v": kv * dim, "y": heads * dim}
    limits = Limits(context=context, slots=slots, chunk=chunk)
    caches = (CacheSpec(kv, dim, window),)
    return Bench(library, threads, ops, rows, caches=caches, limits=limits)


def rows_of(rng, heads, kv, dim):
    q = random_rows(rng, CONTEXT, heads * dim) / np.float32(2)
    q[3] /= np.float32(2.0**18)
    k, v = (random_rows(rng, CONTEXT, kv * dim) for _ in range(2))
    k[3] /= np.float32(2.0**20)
    v[3] /= np.float32(2.0**8)
    return {"q": q, "k": k, "v": v}


def expected(rows, heads, kv, dim, window):
    keys, values = oracle.snap_kv(rows["k"], kv), oracle.snap_kv(rows["v"], kv)
    last = np.arange(1, CONTEXT + 1)
    first = np.zeros_like(last) if window is None else np.maximum(0, last - window)
    q = rows["q"].reshape(CONTEXT, heads, dim)
    visible = np.stack([first, last], axis=1)
    return oracle.attention(q, keys, values, visible, dim**-0.5), keys, values


def feed(bench, rows, sizes):
    """All positions in chunks of `sizes`, repeated; yields (first, count, output)."""
    first, turn = 0, 0
    while first < CONTEXT:
        count = min(sizes[turn % len(sizes)], CONTEXT - first)
        part = {name: values[first : first + count] for name, values in rows.items()}
        step = step_of(count, positions=np.arange(first, first + count))
        yield first, count, bench.play(part, "y", step)
        first, turn = first + count, turn + 1


@pytest.mark.parametrize("window", [None, 8, 150])
@pytest.mark.parametrize(
    ("heads", "kv", "dim"),
    [(9, 3, 64), (4, 1, 128), (2, 2, 256), (3, 1, 40), (2, 1, 18), (20, 2, 24)],
)
def test_equals_the_oracle_for_any_chunking(library, threads, tally, rng, heads, kv, dim, window):
    rows = rows_of(rng, heads, kv, dim)
    y, keys, values = expected(rows, heads, kv, dim, window)
    for sizes in ([64], [1, 5, 16, 2]):
        bench = bench_of(library, threads, heads, kv, dim, window)
        for first, count, actual in feed(bench, rows, sizes):
            label = bench.label("attention", bucket_of(count))
            tally.compare("attention", bench, label, y[first : first + count], actual)
        kept = bench.runner.caches[0].geometry.capacity
        start = max(0, CONTEXT - kept)
        stored = bench.runner.caches[0].export_rows(0, start, CONTEXT)
        assert same_bits(stored[0].view(np.uint16), keys[start:].view(np.uint16))
        assert same_bits(stored[1].view(np.uint16), values[start:].view(np.uint16))
        bench.close()


@pytest.mark.parametrize("window", [None, 150])
@pytest.mark.parametrize(("heads", "kv", "dim"), [(9, 3, 64), (4, 1, 256), (2, 2, 24)])
def test_scores_far_apart(library, threads, tally, rng, heads, kv, dim, window):
    """Scores of many hundred binades, and values whose tiles lie more than 40 apart: where weights
    vanish, shifts are cut and z acts, in some rows of a step and not in their neighbours."""
    rows = rows_of(rng, heads, kv, dim)
    rows["q"] *= np.float32(2.0) ** rng.integers(-2, 8, (CONTEXT, 1)).astype(np.float32)
    tile = np.arange(CONTEXT)[:, None] // 128
    rows["k"] *= np.where(tile == 1, 8, 1).astype(np.float32)
    sizes = rng.integers(-8, 8, (CONTEXT, 1)) - 12 * (tile == 1)
    rows["v"] *= np.float32(2.0) ** sizes.astype(np.float32)
    y, *_ = expected(rows, heads, kv, dim, window)
    for sizes in ([64], [7, 1, 33]):
        bench = bench_of(library, threads, heads, kv, dim, window)
        for first, count, actual in feed(bench, rows, sizes):
            label = bench.label("attention", bucket_of(count))
            tally.compare("attention", bench, label, y[first : first + count], actual)
        bench.close()


@pytest.mark.parametrize("scores", [(70, 20, 0), (20, 70, 0), (0, 75, 30)], ids=str)
def test_what_z_drops_between_tiles(library, threads, tally, rng, scores):
    """Where the values of the largest score are zeros, the next tile is 50 binades below it and
    shows in the output, and the third, 70 below, would change its last bits but for z."""
    last, dim, count = 380, 64, 40
    q, k = np.zeros((last, 2 * dim), np.float32), np.zeros((last, dim), np.float32)
    q[:, ::dim] = 8
    q[370, ::dim] = 4
    k[:, 0] = np.repeat(scores, 128)[:last] / (8 * dim**-0.5 * np.log2(np.e))
    v = (rng.standard_normal((last, dim)) * 2.0**13).astype(np.float32)
    top = 128 * int(np.argmax(scores))
    v[top : top + 128, : dim // 2] = 0
    k[top + 1 : top + 128] = 0
    rows = {"q": q, "k": k, "v": v}
    visible = np.stack([np.zeros(last, int), np.arange(last) + 1], axis=1)
    keys, values = oracle.snap_kv(k, 1), oracle.snap_kv(v, 1)
    y = oracle.attention(q.reshape(last, 2, dim), keys, values, visible, dim**-0.5)
    bench = bench_of(library, threads, 2, 1, dim, None, context=last)
    for first in range(0, last, count):
        part = {name: values[first : first + count] for name, values in rows.items()}
        step = step_of(len(part["q"]), positions=np.arange(first, min(first + count, last)))
        label = bench.label("attention", bucket_of(len(part["q"])))
        actual = bench.play(part, "y", step)
        tally.compare("attention", bench, label, y[first : first + count], actual)
    bench.close()


def test_imported_rows_equal_computed_ones(library, rng):
    """Rows exported as f16 and imported elsewhere give the same next output."""
    heads, kv, dim, at = 4, 2, 64, 200
    rows = rows_of(rng, heads, kv, dim)
    y, *_ = expected(rows, heads, kv, dim, None)
    first = bench_of(library, 2, heads, kv, dim, None)
    for *_, _out in feed(first, rows, [64]):
        pass
    second = bench_of(library, 2, heads, kv, dim, None)
    second.runner.caches[0].import_rows(0, 0, *first.runner.caches[0].export_rows(0, 0, at))
    part = {name: values[at : at + 1] for name, values in rows.items()}
    assert same_bits(y[at : at + 1], second.play(part, "y", step_of(1, positions=[at])))
    first.close()
    second.close()


def test_slots_do_not_meet(library, threads, tally, rng):
    """Two sequences in one step give what each gives alone."""
    heads, kv, dim = 4, 2, 64
    one, two = rows_of(rng, heads, kv, dim), rows_of(rng, heads, kv, dim)
    results = [expected(rows, heads, kv, dim, None)[0] for rows in (one, two)]
    bench = bench_of(library, threads, heads, kv, dim, None, slots=3)
    for first in range(0, 192, 32):
        part = slice(first, first + 32)
        both = {name: np.concatenate([one[name][part], two[name][part]]) for name in one}
        where = np.tile(np.arange(first, first + 32), 2)
        step = step_of(64, positions=where, slots=np.repeat([2, 0], 32))
        actual = bench.play(both, "y", step)
        wanted = np.concatenate([result[part] for result in results])
        tally.compare("attention", bench, bench.label("attention", "chunk"), wanted, actual)
    bench.close()


def test_narrowest_head_fills_int16_exactly(library):
    """17 elements: query codes up to 2^15 − 1 in size, met at both ends."""
    rows = {name: np.ones((CONTEXT, 17), np.float32) for name in "qkv"}
    rows["q"][:, ::2] = -1
    rows["q"][:, 3] = 2 - 2**-23
    rows["q"][:, 4] = 2**-23 - 2
    rows["k"] *= np.linspace(-1, 1, CONTEXT, dtype=np.float32)[:, None]
    y, *_ = expected(rows, 1, 1, 17, None)
    bench = bench_of(library, 1, 1, 1, 17, None)
    for first, count, actual in feed(bench, rows, [64, 1]):
        assert same_bits(y[first : first + count], actual)
    bench.close()


@pytest.mark.parametrize("dim", [1, 8, 16, 513])
def test_heads_that_the_codes_do_not_hold_are_refused(library, dim):
    with pytest.raises(DeviceError, match=f"Layer 0 has attention heads of {dim} elements"):
        bench_of(library, 1, 1, 1, dim, None)


def test_score_out_of_range_fails_the_row(library):
    bench = bench_of(library, 2, 1, 1, 64, None)
    rows = {name: np.ones((2, 64), np.float32) for name in "qkv"}
    rows["q"][1] *= 2.0**20
    rows["k"][:] *= 2.0**10
    with pytest.raises(ArithmeticFault, match="Row 1 of attention"):
        bench.play(rows, "y")
    bench.close()


@pytest.mark.parametrize("wrong", [0, 21, 39])
def test_a_score_out_of_range_among_many_rows_fails_its_row(library, threads, wrong):
    bench = bench_of(library, threads, 6, 2, 64, None)
    rows = {name: np.ones((40, heads * 64), np.float32) for name, heads in (("q", 6), ("k", 2))}
    rows["v"] = rows["k"].copy()
    rows["k"] *= 2.0**10
    bench.play(rows, "y")
    rows["q"][wrong, 5 * 64 :] *= -(2.0**20)
    with pytest.raises(ArithmeticFault, match=f"Row {wrong} of attention"):
        bench.play(rows, "y")
    bench.close()


def test_value_beyond_half_fails_the_row(library):
    bench = bench_of(library, 1, 1, 1, 64, None)
    rows = {name: np.ones((3, 64), np.float32) for name in "qkv"}
    rows["v"][2, 5] = 70000
    with pytest.raises(ArithmeticFault, match="Row 2 of kv"):
        bench.play(rows, "y")
    rows["v"][2, 5] = 65504  # rounds up to the grid's 2047·2^5, still an f16
    bench.play(rows, "y")
    bench.close()
