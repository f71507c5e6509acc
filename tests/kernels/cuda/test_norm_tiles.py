"""Norms straight into tiles: the bytes of the oracle's rows quantised, and the same sums."""

import numpy as np
import pytest

from muser.formats import BlockType
from muser.graph import oracle

from ..bench import differing, random_rows, same_bits
from .chunk import TILES, Chunk
from .launching import Play, constant, structure
from .shim import poisoned

ARCHITECTURES = ("sm_80", "sm_90")
ALONE, ADDED, NORMED = range(3)
FORMS = (BlockType.Q4_K, BlockType.Q8_0, BlockType.F16)
WIDTHS = {256: (256, 2048, 2304), 32: (32, 288, 1088), 1: (4, 132, 1100)}
EPS = (1e-4, 1e-5)
F32 = np.float32


@pytest.fixture(params=ARCHITECTURES)
def texts(request, shims):
    return shims(request.param, "tiles.cuh", "tile_rows.cuh", "norm_tiles.cuh")


class Normed(Chunk):
    """Tiles of normed rows, `each` rows a thread block; `sums` are the rows that were normed."""

    def __init__(
        self, shim, form, x, other=None, weight=None, first=None, *, eps=EPS, each=2, seed=0
    ):
        name, size, group = TILES[form.elements]
        play, width = Play(len(x), len(x) + 130), x.shape[1]
        bands, self.groups = -(-play.bucket // 128), -(-width // group)
        self.kind = ALONE if other is None else NORMED if first is not None else ADDED
        self.tiles = poisoned((bands * self.groups * size,), np.uint8)
        self.play, self.rows = play, None if other is None else play.source(other)
        norm = structure(
            x=play.source(x), other=self.rows, first_weight=constant(first),
            weight=constant(weight), sum=self.rows, out=None, step=play.step(),
            faults=play.faults(), width=width, held=1, inverse=F32(1 / width),
            first_eps=F32(eps[0]), eps=F32(eps[1]),
        )  # fmt: skip
        argument = structure(norm=norm, tiles=self.tiles, kind=self.kind, groups=self.groups)
        shared = 4 * width * each * (1 if other is None else 2)
        grid = bands * 128 // each
        shim.launch(f"norm_tiles_{name}", grid, 256 * each, argument, shared=shared, seed=seed)

    @property
    def sums(self):
        return self.play.results(self.rows)


def expected(x, other=None, weight=None, first=None, *, eps=EPS):
    """The sum, if there is one, and its norm."""
    if other is None:
        return None, oracle.rms_norm(x, weight, eps[1])
    branch = x if first is None else oracle.rms_norm(x, first, eps[0])
    total = oracle.add(branch, other)
    return total, oracle.rms_norm(total, weight, eps[1])


def sources(rng, kind, n, width):
    x, other = random_rows(rng, n, width), random_rows(rng, n, width)
    first, weight = random_rows(rng, 2, width)
    other[n // 2] = 0
    x[n // 2, : width // 2] = 0  # blocks of zeros
    return {ALONE: (x, None, weight), ADDED: (x, other, weight), NORMED: (x, other, weight, first)}[
        kind
    ]


def check(texts, form, arrays, eps=EPS, **how):
    made, n = Normed(texts, form, *arrays, eps=eps, **how), len(arrays[0])
    total, rows = expected(*arrays, eps=eps)
    wanted = Chunk(texts, form, rows, room=n + 130)
    assert np.array_equal(made.tiles, wanted.tiles)
    if total is not None:
        assert same_bits(total, made.sums), differing(total, made.sums)
    assert made.play.fault is None


@pytest.mark.parametrize("kind", [ALONE, ADDED, NORMED])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_tiles_are_those_of_the_normed_rows(texts, rng, form, kind):
    for width in WIDTHS[form.elements]:
        for n, each in ((17, 1), (21, 2), (130, 2)):
            check(texts, form, sources(rng, kind, n, width), each=each)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_any_order_of_threads(texts, rng, form, seed):
    check(texts, form, sources(rng, NORMED, 19, 288 if form is not FORMS[0] else 768), seed=seed)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_without_weights(texts, rng, form):
    x, other = random_rows(rng, 18, 512), random_rows(rng, 18, 512)
    check(texts, form, (x,))
    check(texts, form, (x, other))


@pytest.mark.parametrize("kind", [ALONE, ADDED, NORMED])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_rows_that_are_not_there_are_zeros(texts, rng, form, kind):
    """Also where the norm of zeros would be no number."""
    x, other, first, weight = (random_rows(rng, 1, 256) + 3 for _ in range(4))
    arrays = (x, other, weight[0], first[0])
    check(texts, form, (x, None, weight[0]) if kind == ALONE else arrays[: kind + 2], eps=(0, 0))


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_first_lost_row_is_reported(texts, rng, form, each):
    x, other = random_rows(rng, 20, 256), random_rows(rng, 20, 256)
    ones, vast = np.ones(256, F32), np.ones(256, F32)
    tall, huge, lost = (x.copy() for _ in range(3))
    vast[77], tall[:, 77] = 3e38, 0
    tall[[7, 11], 77], huge[[7, 11], 77], lost[[7, 11], 77] = 1e4, 2.0**120, np.inf
    zeros = np.zeros_like(x)
    for arrays in (
        (huge, None, ones),
        (tall, None, vast),
        (lost, other, ones),
        (lost, -lost, ones),
        (tall, zeros, vast),
        (huge, other, ones, ones),
        (tall, other, ones, vast),
        (x, huge, ones, ones),
        (x, tall, vast, zeros[0]),
    ):
        made = Normed(texts, form, *arrays, each=each)
        assert made.play.fault == 7, [None if a is None else a.shape for a in arrays]
