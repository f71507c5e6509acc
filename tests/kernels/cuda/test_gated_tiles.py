"""Gated rows straight into tiles: the bytes of the oracle's rows quantised."""

import numpy as np
import pytest

from muser.graph import Activation, oracle

from ..bench import random_rows
from ..test_operators import gates
from .chunk import TILES, Chunk
from .launching import Play, structure
from .shim import device, poisoned
from .test_norm_tiles import ARCHITECTURES, FORMS

WIDTHS = {256: (256, 1280), 32: (32, 288), 1: (1, 130, 384)}
ACTS = {Activation.SILU: 1, Activation.GELU: 2}
F32 = np.float32


@pytest.fixture(params=ARCHITECTURES)
def texts(request, shims):
    return shims(request.param, "tiles.cuh", "tile_rows.cuh")


def gated(shim, form, gate, up, act, seed=0):
    """Tiles of act(gate) · up with more room than rows, and where faults went."""
    name, size, group = TILES[form.elements]
    n, width = gate.shape
    play, bands, groups = Play(n, n + 130), -(-(n + 130) // 128), -(-width // group)
    tiles = poisoned((bands * groups * size,), np.uint8)
    rows = structure(
        x=play.source(gate), tiles=tiles, count=device(np.array([n], np.int32)), width=width,
        groups=groups,
    )  # fmt: skip
    argument = structure(rows=rows, up=play.source(up), faults=play.faults(), act=ACTS[act])
    shim.launch(f"gated_tiles_{name}", (groups, 16 * bands), 256, argument, seed=seed)
    return tiles, play


@pytest.mark.parametrize("act", ACTS, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_tiles_are_those_of_the_gated_rows(texts, rng, form, act, seed):
    for width in WIDTHS[form.elements]:
        for n in (17, 130):
            gate, up = np.tile(gates(rng, width), (4, 1))[:n], random_rows(rng, n, width)
            gate[3], up[5] = 0, 0
            tiles, play = gated(texts, form, gate, up, act, seed)
            wanted = Chunk(texts, form, oracle.gated_act(gate, up, act), room=n + 130)
            assert np.array_equal(tiles, wanted.tiles)
            assert play.fault is None


@pytest.mark.parametrize("act", ACTS, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_first_lost_row_is_reported(texts, rng, form, act):
    gate, up = np.ones((20, 256), F32), random_rows(rng, 20, 256)
    huge = up.copy()
    gate[[7, 11], 77], huge[[7, 11], 77] = 1e10, 3e38
    assert gated(texts, form, gate, huge, act)[1].fault == 7
    up[[9, 11], 200] = np.inf
    assert gated(texts, form, gate, up, act)[1].fault == 9
