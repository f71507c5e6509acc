"""Norms and elementwise operators on the shim, equal to the oracle bit for bit."""

import numpy as np
import pytest

from muser.graph import Activation, oracle

from ..bench import differing, random_rows, same_bits
from ..test_operators import gates
from .launching import Play, constant, orders, structure

HUGE = np.float32(2.0**120)
F32 = np.float32


@pytest.fixture
def rows(shims):
    return shims("sm_90a", "rows.cuh")


def check(expected, actual):
    assert same_bits(expected, actual), differing(expected, actual)


WAYS = ((0, 1), (1, 1), (1, 2))
"""Whether shared memory holds the rows, and how many a thread block has."""


def ways(width):
    return WAYS[:1] if width % 4 else WAYS


def norm(shim, kernel, play, x, other=None, weight=None, first=None, way=(0, 1), seed=0):
    """The rows normed in place, or the sums in place of `other` and their norms."""
    (held, each), width = way, x.shape[1]
    source = play.source(x)
    sums = None if other is None else play.source(other)
    out = source if other is None else play.target(width)
    argument = structure(
        x=source,
        other=sums,
        first_weight=constant(first),
        weight=constant(weight),
        sum=sums,
        out=out,
        step=play.step(),
        faults=play.faults(),
        width=width,
        held=held,
        inverse=F32(1 / width),
        first_eps=F32(1e-4),
        eps=F32(1e-5),
    )
    shared = held * each * 4 * width * (1 if other is None else 2)
    shim.launch(kernel, -(-play.bucket // each), 256 * each, argument, shared=shared, seed=seed)
    return (play.results(out),) if other is None else (play.results(sums), play.results(out))


def check_norms(shim, kernel, expected, x, other=None, weight=None, first=None):
    for way in ways(x.shape[1]):
        for count, bucket, seed in orders():
            play = Play(count, bucket)
            actual = norm(shim, kernel, play, x, other, weight, first, way, seed)
            for wanted, got in zip(expected, actual, strict=True):
                check(wanted[:count], got)
            assert play.fault is None


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("width", [1, 96, 255, 256, 576, 1023, 6656, 8196])
def test_norm(rows, rng, width, weighted):
    x, w = random_rows(rng, 64, width), random_rows(rng, 1, width)[0] if weighted else None
    check_norms(rows, "rms_norm", [oracle.rms_norm(x, w, 1e-5)], x, weight=w)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("width", [1, 255, 576, 2308, 6656])
def test_add_norm(rows, rng, width, weighted):
    left, right = random_rows(rng, 64, width), random_rows(rng, 64, width)
    right[9] = -left[9]
    w = random_rows(rng, 1, width)[0] if weighted else None
    total = oracle.add(left, right)
    check_norms(rows, "add_norm", [total, oracle.rms_norm(total, w, 1e-5)], left, right, w)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("width", [1, 255, 576, 2308, 6656])
def test_norm_add_norm(rows, rng, width, weighted):
    branch, stream = random_rows(rng, 64, width), random_rows(rng, 64, width)
    first, second = random_rows(rng, 2, width) if weighted else (None, None)
    total = oracle.add(oracle.rms_norm(branch, first, 1e-4), stream)
    expected = [total, oracle.rms_norm(total, second, 1e-5)]
    check_norms(rows, "norm_add_norm", expected, branch, stream, second, first)


def elementwise(shim, kernel, play, x, y, block, **constants):
    width = x.shape[1]
    source, out = play.source(x), play.target(width)
    constants = {name: F32(constants.get(name, 0)) for name in ("factor", "inverse", "scale")}
    argument = structure(
        x=source,
        y=None if y is None else play.source(y),
        out=out,
        step=play.step(),
        faults=play.faults(),
        width=width,
        **constants,
    )
    shim.launch(kernel, (-(-width // (4 * block)), play.bucket), block, argument)
    return play.results(out)


def check_elementwise(shim, kernel, expected, x, y=None, **constants):
    for count, bucket, seed in orders():
        play = Play(count, bucket)
        block = (64, 256)[seed % 2]
        actual = elementwise(shim, kernel, play, x, y, block, **constants)
        check(expected[:count], actual)
        assert play.fault is None


WIDTHS = (1, 7, 576, 1030)


@pytest.mark.parametrize("width", WIDTHS)
def test_gates(rows, rng, width):
    gate = np.pad(gates(rng, width), ((0, 23), (0, 0)), mode="reflect")
    up = random_rows(rng, 64, width)
    check_elementwise(rows, "sigmoid_gate", oracle.sigmoid_gate(up, gate), up, gate)
    for act in Activation:
        expected = oracle.gated_act(gate, up, act)
        check_elementwise(rows, f"{act}_gate", expected, gate, up)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_scale_softcap(rows, rng, width):
    a, b = random_rows(rng, 64, width), random_rows(rng, 64, width)
    b[9] = -a[9]
    check_elementwise(rows, "add", oracle.add(a, b), a, b)
    check_elementwise(rows, "scale", oracle.scale(a, 0.37), a, factor=0.37)
    cap = {"factor": 30.0, "inverse": 1 / 30}
    check_elementwise(rows, "softcap", oracle.softcap(a, 30.0), a, **cap)
    both = oracle.softcap(oracle.scale(a, 0.37), 30.0)
    check_elementwise(rows, "scale_softcap", both, a, scale=0.37, **cap)


@pytest.mark.parametrize("row", [0, 3])
def test_faults_name_the_first_row(rows, rng, row):
    """Sums and products that overflow, in two rows."""
    x = random_rows(rng, 5, 64)
    x[row, 9] = x[4, 60] = HUGE
    most = np.where(x == HUGE, F32(3e38), x)
    capped = {"factor": F32(30), "inverse": F32(1 / 30)}
    tries = (
        lambda play: elementwise(rows, "add", play, most, most, 64),
        lambda play: elementwise(rows, "scale", play, most, None, 64, factor=4),
        lambda play: elementwise(
            rows, "sigmoid_gate", play, np.where(x == HUGE, F32(np.inf), x), x, 64
        ),
        lambda play: elementwise(rows, "silu_gate", play, most, most, 64),
        lambda play: elementwise(rows, "gelu_gate", play, x, most, 64),
        lambda play: elementwise(rows, "scale_softcap", play, most, None, 64, scale=4, **capped),
    )
    for attempt in tries:
        play = Play(5, 16)
        attempt(play)
        assert play.fault == row


def faulty_norms(rng, row):
    """Kernel, x, other, weight and first weight: rows `row` and 4 leave the finite numbers."""
    x, ones, vast = random_rows(rng, 5, 64), np.ones(64, F32), np.ones(64, F32)
    places, vast[9] = ([row, 4], [9, 60]), 3e38
    huge, lost, minus, tall = x.copy(), x.copy(), x.copy(), x.copy()
    huge[places], lost[places], minus[places], tall[[row, 4], 9] = HUGE, np.inf, -np.inf, 1e4
    flat = np.where(tall == 1e4, tall, F32(0.25))
    flat[[i for i in range(4) if i != row], 9] = 0
    return {
        "squares": ("rms_norm", huge, None, ones, None),
        "a weight": ("rms_norm", flat, None, vast, None),
        "squares of sums": ("add_norm", x, huge, ones, None),
        "a sum": ("add_norm", lost, x, ones, None),
        "a sum of infinities": ("add_norm", lost, minus, ones, None),
        "a weight of sums": ("add_norm", flat, 0 * x, vast, None),
        "squares of the branch": ("norm_add_norm", huge, x, ones, ones),
        "a weight of the branch": ("norm_add_norm", flat, x, ones, vast),
        "infinities of both": ("norm_add_norm", flat, minus, ones, vast),
        "squares of the stream": ("norm_add_norm", x, huge, ones, ones),
        "the last weight": ("norm_add_norm", flat, flat, vast, 0 * ones),
    }


FAULTY = list(faulty_norms(np.random.default_rng(0), 0))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("case", FAULTY)
@pytest.mark.parametrize("row", [0, 3])
def test_norms_name_the_first_row(rows, rng, row, case, way):
    kernel, *arrays = faulty_norms(rng, row)[case]
    play = Play(5, 16)
    norm(rows, kernel, play, *arrays, way=way)
    assert play.fault == row
