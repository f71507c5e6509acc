"""What leaves the finite numbers fails its row, by name, in every kernel that can make it.

An infinity that is divided or multiplied away later would be a wrong answer without a word.
"""

import numpy as np
import pytest

from muser.errors import ArithmeticFault
from muser.formats import quantise
from muser.graph import (
    Activation,
    Add,
    GatedAct,
    HeadNorm,
    Pairing,
    Project,
    RmsNorm,
    Rope,
    RopeSpec,
    Scale,
    Softcap,
    oracle,
)

from .bench import HALF_SCALES, TYPES, Bench, Tensors, float_rows, random_rows

HUGE = np.float32(3e38)
WIDTH = 512
COUNTS = (1, 3, 9, 33)  # one of each row bucket


def steep_rows(kind, out):
    """Weight rows that are zero but for the last, whose values are large and of one sign."""
    values = np.zeros((out, WIDTH), np.float32)
    values[-1] = 30
    if kind not in HALF_SCALES:
        return float_rows(kind, values)
    return quantise(kind, values)


def assert_faults(bench, inputs, row, node):
    with pytest.raises(ArithmeticFault, match=rf"^Row {row} of {node} "):
        bench.play(inputs, "y")


@pytest.mark.parametrize("out", [1, 8, 37])
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_projection(library, threads, kind, out):
    """Only the last output of one row overflows; lanes behind it must neither hide nor add one."""
    raw = steep_rows(kind, out)
    tensors = Tensors()
    tensors.put("w", kind, raw, WIDTH)
    rows = {"x": WIDTH, "y": out}
    bench = Bench(library, threads, [Project("x", ("y",), ("w",), ("here",))], rows, tensors)
    x = random_rows(np.random.default_rng(1), COUNTS[-1], WIDTH)
    for count in COUNTS:
        bent = x[:count].copy()
        bent[count - 1] = HUGE
        with np.errstate(all="ignore"), pytest.raises(ArithmeticFault):
            oracle.project(bent, kind, raw)
        assert_faults(bench, {"x": bent}, count - 1, "here")
        expected = oracle.project(x[:count], kind, raw)
        assert bench.play({"x": x[:count]}, "y").tobytes() == expected.tobytes()
    bench.close()


def test_the_sum_of_a_norm(library, threads):
    """x² is infinite, 1/√ of it zero, and every output zero: finite, and wrong."""
    norms = (
        RmsNorm("x", "y", None, 1e-5, "here"),
        HeadNorm("x", "y", None, 8, 64, 1e-5, "here"),
    )
    for op in norms:
        bench = Bench(library, threads, [op], {"x": WIDTH, "y": WIDTH})
        x = random_rows(np.random.default_rng(2), 5, WIDTH)
        x[3, 77] = 2.0**70
        assert_faults(bench, {"x": x}, 3, "here")
        bench.close()


@pytest.mark.parametrize("pairing", Pairing)
def test_rotation(library, threads, pairing):
    op = Rope("x", "y", 2, 64, "table", "here")
    ropes = {"table": RopeSpec(64, 10000.0, pairing)}
    bench = Bench(library, threads, [op], {"x": 128, "y": 128}, ropes=ropes)
    x = random_rows(np.random.default_rng(3), 5, 128)
    x[1, 64:] = HUGE  # at position 1: x·sin + y·cos of the first pair is 1.38 times as large
    assert_faults(bench, {"x": x}, 1, "here")
    bench.close()


ELEMENTWISE = {
    "add": Add("x", "g", "y", "here"),
    "scale": Scale("x", "y", 4.0, "here"),
    "silu": GatedAct("g", "x", "y", Activation.SILU, "here"),
    "gelu": GatedAct("g", "x", "y", Activation.GELU, "here"),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("width", [64, 8200])
def test_elementwise(library, threads, name, width):
    """The last element; from 8,192 on, rows are cut by columns."""
    bench = Bench(library, threads, [ELEMENTWISE[name]], {"x": width, "g": width, "y": width})
    x = random_rows(np.random.default_rng(4), 5, width)
    g = np.ones((5, width), np.float32)
    x[2, -1], g[2, -1] = HUGE, 3e38 if name == "add" else 40
    assert_faults(bench, {"x": x, "g": g}, 2, "here")
    bench.close()


def test_a_softcap_does_not_hide_the_scale_before_it(library, threads):
    """Fused or not, x·k is a result of its own: its infinity is a fault, not the cap."""
    ops = [Scale("x", "y", 4.0, "scaled"), Softcap("y", "y", 20.0, "capped")]
    bench = Bench(library, threads, ops, {"x": 64, "y": 64})
    x = random_rows(np.random.default_rng(5), 5, 64)
    x[4, 9] = HUGE
    with np.errstate(all="ignore"), pytest.raises(ArithmeticFault):
        oracle.scale(x, 4.0)
    assert_faults(bench, {"x": x}, 4, "(scaled|capped)")
    bench.close()
