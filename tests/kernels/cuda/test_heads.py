"""Head norms, rotations and what decode does with q, k and v at once, equal to the oracle."""

from dataclasses import dataclass

import numpy as np
import pytest

from muser.graph import Pairing, RopeSpec, oracle, rope_table
from muser.graph.arithmetic import KV_GRID, grid_rows

from ..bench import differing, random_rows, same_bits
from .launching import Play, constant, orders, structure
from .shim import device

F32 = np.float32
EPS = 1e-6


@pytest.fixture
def texts(shims):
    return shims("sm_90a", "rows.cuh", "heads.cuh")


def check(expected, actual):
    assert same_bits(expected, actual), differing(expected, actual)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("count_heads", "dim"), [(5, 24), (3, 128), (1, 256), (2, 300), (6, 600)])
def test_head_norm(texts, rng, count_heads, dim, weighted):
    x, w = random_rows(rng, 64, count_heads * dim), random_rows(rng, 1, dim)[0]
    w = w if weighted else None
    expected = oracle.head_norm(x, w, count_heads, EPS)
    for count, bucket, seed in orders():
        play = Play(count, bucket)
        source = play.source(x)
        argument = structure(
            x=source,
            weight=constant(w),
            out=source,
            step=play.step(),
            faults=play.faults(),
            heads=count_heads,
            head_dim=dim,
            inverse=F32(1 / dim),
            eps=F32(EPS),
        )
        texts.launch("head_norm", (-(-count_heads // 4), bucket), 128, argument, seed=seed)
        check(expected[:count], play.results(source))
        assert play.fault is None


@pytest.mark.parametrize("pairing", list(Pairing))
@pytest.mark.parametrize(("dim", "rotated"), [(32, 32), (32, 20), (128, 128), (256, 64), (6, 2)])
def test_rope(texts, rng, pairing, dim, rotated):
    x, count_heads = random_rows(rng, 64, 3 * dim), 3
    table = rope_table(RopeSpec(rotated, 10000.0, pairing), 500)
    positions = rng.integers(0, 500, 64)
    expected = oracle.rope(x, table[positions], count_heads, pairing)
    for count, bucket, seed in orders():
        play = Play(count, bucket, positions=positions)
        source = play.source(x)
        argument = structure(
            x=source,
            table=device(table),
            out=source,
            step=play.step(),
            faults=play.faults(),
            heads=count_heads,
            head_dim=dim,
            rotated=rotated,
            spare=0,
        )
        block = (64, 32, 256)[seed]
        grid = (-(-count_heads * dim // (2 * block)), bucket)
        texts.launch(f"rope_{pairing}", grid, block, argument)
        check(expected[:count], play.results(source))
        assert play.fault is None


@dataclass
class Case:
    """What `heads` does in one model: `rotated` 0 and `normed` False leave a part out."""

    heads: int = 8
    kv_heads: int = 2
    dim: int = 128
    normed: bool = True
    weighted: bool = True
    rotated: int = 128
    pairing: Pairing = Pairing.HALF_SPLIT
    capacity: int = 256
    slots: int = 3

    def vectors(self, rng):
        q, k = random_rows(rng, 2, self.dim) if self.weighted else (None, None)
        return q, k

    def expected(self, rows, vectors, table):
        """q, and k and v snapped, and the steps of v, by the sequence of single operators."""
        q, k, v = rows
        if self.normed:
            q = oracle.head_norm(q, vectors[0], self.heads, EPS)
            k = oracle.head_norm(k, vectors[1], self.kv_heads, EPS)
        if self.rotated:
            q = oracle.rope(q, table, self.heads, self.pairing)
            k = oracle.rope(k, table, self.kv_heads, self.pairing)
        split = v.reshape(len(v), self.kv_heads, self.dim)
        steps = grid_rows(split, *KV_GRID)[1].astype(np.int8)
        return q, oracle.snap_kv(k, self.kv_heads), oracle.snap_kv(v, self.kv_heads), steps


@dataclass
class Cache:
    case: Case

    def __post_init__(self):
        shape = (self.case.slots, self.case.kv_heads, self.case.capacity)
        self.k = device(np.zeros((*shape, self.case.dim), np.float16))
        self.v = device(np.zeros((*shape, self.case.dim), np.float16))
        self.steps = device(np.zeros(shape, np.int8))


def launch(shim, case, play, rows, vectors, table, cache, seed=0):
    q = play.source(rows[0])
    argument = structure(
        q=q,
        k=play.source(rows[1]),
        v=play.source(rows[2]),
        q_weight=constant(vectors[0]),
        k_weight=constant(vectors[1]),
        table=constant(table),
        q_out=q,
        k_cache=cache.k,
        v_cache=cache.v,
        v_steps=cache.steps,
        step=play.step(),
        faults=play.faults(),
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=case.dim,
        capacity=case.capacity,
        normed=case.normed,
        rotated=case.rotated,
        halves=case.pairing is Pairing.HALF_SPLIT,
        inverse=F32(1 / case.dim),
        eps=F32(EPS),
        spare=0,
    )
    grid = (-(-(case.heads + 2 * case.kv_heads) // 4), play.bucket)
    shim.launch("heads", grid, 128, argument, seed=seed)
    return play.results(q)


CASES = (
    Case(),
    Case(pairing=Pairing.INTERLEAVED),
    Case(rotated=0),
    Case(normed=False, pairing=Pairing.INTERLEAVED),
    Case(normed=False, rotated=0),
    Case(weighted=False, heads=5, kv_heads=1, dim=64, rotated=32),
    Case(heads=4, kv_heads=4, dim=256, rotated=256, capacity=128),
    Case(heads=3, kv_heads=3, dim=96, rotated=80, pairing=Pairing.INTERLEAVED),
    Case(heads=6, kv_heads=2, dim=80, rotated=80),
    Case(heads=4, kv_heads=1, dim=64, rotated=64, pairing=Pairing.INTERLEAVED),
    Case(rotated=64, pairing=Pairing.INTERLEAVED),
    Case(normed=False, rotated=48),
    Case(heads=2, kv_heads=1, dim=256, rotated=256, pairing=Pairing.INTERLEAVED),
)


def rows_of(rng, case, count):
    widths = (case.heads * case.dim, case.kv_heads * case.dim, case.kv_heads * case.dim)
    return [np.clip(random_rows(rng, count, width), -2e4, 2e4) for width in widths]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_heads(texts, rng, case):
    rows, vectors = rows_of(rng, case, 64), case.vectors(rng)
    rotated = case.rotated or 2
    table = rope_table(RopeSpec(rotated, 10000.0, case.pairing), 1000)
    for count, bucket, seed in orders():
        places = rng.permutation(case.slots * 1000)[:count]
        slots, positions = places // 1000, places % 1000
        places = np.unique(slots * case.capacity + positions % case.capacity, return_index=True)[1]
        slots, positions = slots[np.sort(places)], positions[np.sort(places)]
        count = len(slots)
        play, cache = Play(count, bucket, positions=positions, slots=slots), Cache(case)
        mine = [x[:count] for x in rows]
        q, k, v, steps = case.expected(mine, vectors, table[positions])
        check(q, launch(texts, case, play, mine, vectors, table, cache, seed))
        assert play.fault is None
        at = positions % case.capacity
        for plane, expected in ((cache.k, k), (cache.v, v), (cache.steps, steps)):
            assert np.array_equal(plane[slots, :, at].view(np.uint8), expected.view(np.uint8))
            plane[slots, :, at] = 0
            assert not plane.view(np.uint8).any()


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("normed", [True, False])
def test_faults_name_the_row_and_the_cache_stays_finite(texts, rng, which, normed):
    case = Case(normed=normed)
    rows, vectors = rows_of(rng, case, 5), (np.ones(128, F32), np.ones(128, F32))
    table = rope_table(RopeSpec(128, 10000.0, case.pairing), 8)
    rows[which][2, 3] = rows[which][4, 0] = 3e38
    rows[which][2, 67] = 3e38  # the other of the pair: the sum of both overflows
    play, cache = Play(5, 16, slots=np.arange(5) % 3), Cache(case)
    launch(texts, case, play, rows, vectors, table, cache)
    assert play.fault == 2
    assert np.isfinite(cache.k).all()
    assert np.isfinite(cache.v).all()


def test_a_value_above_the_largest_half_is_a_fault(texts, rng):
    case = Case(normed=False, rotated=0)
    rows = rows_of(rng, case, 3)
    rows[1][0, 0], rows[2][1, 5] = 65504, 65536
    play, cache = Play(3, 4), Cache(case)
    launch(texts, case, play, rows, (None, None), None, cache)
    assert play.fault == 1
