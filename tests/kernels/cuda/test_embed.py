"""Embedding from a card's layout of every type: the file's own values."""

import numpy as np
import pytest

from muser.formats import FLOATS, BlockType
from muser.graph import oracle

from ..bench import TYPES, differing, float_rows, random_blocks, same_bits
from .launching import Play, orders, structure
from .layouts import placed
from .shim import device

VOCABULARY = 30


@pytest.fixture
def texts(shims):
    return shims("sm_90a", "rows.cuh", "embed.cuh")


def embed(shim, kind, raw, width, play, block=256, seed=0):
    weight = raw if kind in FLOATS else placed(kind, raw)
    groups = -(-width // 256)
    out = play.target(width)
    argument = structure(
        weight=device(weight),
        out=out,
        step=play.step(),
        faults=play.faults(),
        width=width,
        groups=groups,
    )
    columns = -(-width // (4 * block)) if kind in FLOATS else -(-groups // 8)
    shim.launch(f"embed_{kind.name.lower()}", (columns, play.bucket), block, argument, seed=seed)
    return play.results(out)


def widths_of(kind):
    return {1: (1, 7, 576), 32: (32, 288, 576, 2304), 256: (256, 2560)}[kind.elements]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_embed(texts, rng, kind):
    for width in widths_of(kind):
        raw = random_blocks(rng, kind, VOCABULARY, width)
        tokens = rng.integers(0, VOCABULARY, 64)
        expected = oracle.embed(kind, raw[tokens])
        for count, bucket, seed in orders():
            play = Play(count, bucket, tokens=tokens)
            actual = embed(texts, kind, raw, width, play, seed=seed)
            assert same_bits(expected[:count], actual), differing(expected[:count], actual)
            assert play.fault is None


def test_faults_name_the_row(texts, rng):
    raw = random_blocks(rng, BlockType.Q4_K, VOCABULARY, 512)
    raw[7, 144:146] = np.array([np.inf], np.float16).view(np.uint8)
    play = Play(3, 4, tokens=np.array([1, 7, 7]))
    with np.errstate(all="ignore"):
        embed(texts, BlockType.Q4_K, raw, 512, play)
    assert play.fault == 1
    values = np.ones((VOCABULARY, 5), np.float32)
    values[9, 4] = np.nan
    play = Play(3, 4, tokens=np.array([1, 2, 9]))
    embed(texts, BlockType.F32, float_rows(BlockType.F32, values), 5, play)
    assert play.fault == 2
