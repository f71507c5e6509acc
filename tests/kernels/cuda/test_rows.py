"""Norms and elementwise operators on the shim, equal to the oracle bit for bit."""

import numpy as np
import pytest

from muser.graph import Activation, oracle

from ..bench import differing, random_rows, same_bits
from ..test_operators import gates
from .launching import Play, orders, structure

HUGE = np.float32(2.0**120)
F32 = np.float32


@pytest.fixture
def rows(shims):
    return shims("sm_90a", "rows.cuh")


def check(expected, actual):
    assert same_bits(expected, actual), differing(expected, actual)


def norm(shim, play, x, weight, eps, seed=0):
    source, width = play.source(x), x.shape[1]
    argument = structure(
        x=source,
        weight=weight,
        out=source,
        step=play.step(),
        faults=play.faults(),
        width=width,
        inverse=F32(1 / width),
        eps=F32(eps),
    )
    shim.launch("rms_norm", play.bucket, 256, argument, seed=seed)
    return play.results(source)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("width", [1, 96, 255, 256, 576, 1023, 6656])
def test_norm(rows, rng, width, weighted):
    x, w = random_rows(rng, 64, width), random_rows(rng, 1, width)[0] if weighted else None
    expected = oracle.rms_norm(x, w, 1e-5)
    for count, bucket, seed in orders():
        play = Play(count, bucket)
        check(expected[:count], norm(rows, play, x, w, 1e-5, seed))
        assert play.fault is None


@pytest.mark.parametrize("width", [8192, 8193, 16384])
def test_wide_norm(rows, rng, width):
    x, w = random_rows(rng, 3, width), random_rows(rng, 1, width)[0]
    check(oracle.rms_norm(x, w, 1e-6), norm(rows, Play(3, 4), x, w, 1e-6, seed=1))


def add_norm(shim, play, left, right, weight, seed=0):
    width = left.shape[1]
    right, out = play.source(right), play.target(width)
    argument = structure(
        left=play.source(left),
        right=right,
        weight=weight,
        sum=right,
        out=out,
        step=play.step(),
        faults=play.faults(),
        width=width,
        inverse=F32(1 / width),
        eps=F32(1e-5),
    )
    shim.launch("add_norm", play.bucket, 256, argument, seed=seed)
    return play.results(right), play.results(out)


@pytest.mark.parametrize("width", [1, 255, 576, 6656, 8192])
def test_add_norm(rows, rng, width):
    left, right = random_rows(rng, 64, width), random_rows(rng, 64, width)
    right[9] = -left[9]
    w = random_rows(rng, 1, width)[0]
    total = oracle.add(left, right)
    expected = oracle.rms_norm(total, w, 1e-5)
    for count, bucket, seed in orders():
        play = Play(count, bucket)
        sums, out = add_norm(rows, play, left, right, w, seed)
        check(total[:count], sums)
        check(expected[:count], out)
        assert play.fault is None


def norm_add_norm(shim, play, branch, stream, first, second, seed=0):
    width = branch.shape[1]
    stream, out = play.source(stream), play.target(width)
    argument = structure(
        branch=play.source(branch),
        stream=stream,
        first=first,
        second=second,
        sum=stream,
        out=out,
        step=play.step(),
        faults=play.faults(),
        width=width,
        inverse=F32(1 / width),
        first_eps=F32(1e-4),
        second_eps=F32(1e-6),
    )
    shim.launch("norm_add_norm", play.bucket, 256, argument, seed=seed)
    return play.results(stream), play.results(out)


@pytest.mark.parametrize("width", [1, 255, 576, 6656, 8192])
def test_norm_add_norm(rows, rng, width):
    branch, stream = random_rows(rng, 64, width), random_rows(rng, 64, width)
    first, second = random_rows(rng, 2, width)
    total = oracle.add(oracle.rms_norm(branch, first, 1e-4), stream)
    expected = oracle.rms_norm(total, second, 1e-6)
    for count, bucket, seed in orders():
        play = Play(count, bucket)
        sums, out = norm_add_norm(rows, play, branch, stream, first, second, seed)
        check(total[:count], sums)
        check(expected[:count], out)
        assert play.fault is None


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
    """Squares, sums and products that overflow, in two rows."""
    x, ones = random_rows(rng, 5, 64), np.ones(64, F32)
    x[row, 9] = x[4, 60] = HUGE
    most = np.where(x == HUGE, F32(3e38), x)
    capped = {"factor": F32(30), "inverse": F32(1 / 30)}
    tries = (
        lambda play: norm(rows, play, x, ones, 1e-5),
        lambda play: add_norm(rows, play, most, most, ones),
        lambda play: norm_add_norm(rows, play, most, np.ones_like(x), ones, ones),
        lambda play: norm_add_norm(rows, play, np.ones_like(x), most, ones, ones),
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


def test_a_weight_can_drive_a_norm_out_of_range(rows, rng):
    x, w = random_rows(rng, 3, 64), np.ones(64, F32)
    x[2, 5], w[5] = 1e4, 3e38
    x[:2, 5] = 0
    play = Play(3, 4)
    norm(rows, play, x, w, 1e-5)
    assert play.fault == 2
