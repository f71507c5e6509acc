"""Projections of every format against the oracle: all row counts from 1 to 64, odd sizes."""

from functools import cache

import numpy as np
import pytest

from muser.formats import BlockType
from muser.graph import Project, oracle
from muser.kernels import bucket_of

from .bench import FLOATS, TYPES, Bench, Tensors, random_blocks, random_rows

ROWS = 64
SIZES = {32: ((32, 1), (288, 37), (576, 16)), 256: ((256, 3), (768, 21)), 1: ((200, 19), (384, 9))}


def cases():
    for kind in TYPES:
        for width, out in SIZES[kind.elements]:
            yield pytest.param(kind, width, out, id=f"{kind.name}-{width}x{out}")


@cache
def expected(kind, width, out):
    """One oracle result a size; every row count is a prefix of it."""
    rng = np.random.default_rng(width * 1000 + out + kind.id)
    raw = random_blocks(rng, kind, out, width)
    x = random_rows(rng, ROWS, width)
    return raw, x, oracle.project(x, kind, raw)


def bench_of(library, threads, kind, width, out, raw):
    tensors = Tensors()
    tensors.put("w", kind, raw, width)
    op = Project("x", ("y",), ("w",), ("y",))
    return Bench(library, threads, [op], {"x": width, "y": out}, tensors)


@pytest.mark.parametrize(("kind", "width", "out"), list(cases()))
def test_equals_the_oracle_at_every_row_count(library, threads, tally, kind, width, out):
    raw, x, y = expected(kind, width, out)
    bench = bench_of(library, threads, kind, width, out, raw)
    for count in range(1, ROWS + 1):
        label = bench.label("project", bucket_of(count))
        tally.compare(kind.name, bench, label, y[:count], bench.play({"x": x[:count]}, "y"))
    bench.close()


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_do_not_depend_on_their_neighbours(library, tally, kind):
    """Each row alone, in reverse order, equals its place in the full chunk."""
    width, out = SIZES[kind.elements][1]
    raw, x, y = expected(kind, width, out)
    bench = bench_of(library, 2, kind, width, out, raw)
    order = np.arange(ROWS)[::-1]
    label = bench.label("project", "chunk")
    tally.compare(kind.name, bench, label, y[order], bench.play({"x": x[order]}, "y"))
    bench.close()


@pytest.mark.parametrize(
    "kind", [kind for kind in TYPES if kind not in FLOATS], ids=lambda k: k.name
)
def test_group_of_weights_reads_one_quantised_row(library, tally, rng, kind):
    """Weights of different block sizes in one group: each gets rows of its own size."""
    width, outs = 512, {"a": 5, "b": 40, "c": 7}
    other = BlockType.Q8_0 if kind.elements == 256 else BlockType.Q4_K
    kinds = {"a": kind, "b": other, "c": kind}
    tensors, x = Tensors(), random_rows(rng, 9, width)
    raws = {name: random_blocks(rng, kinds[name], out, width) for name, out in outs.items()}
    for name, raw in raws.items():
        tensors.put(name, kinds[name], raw, width)
    op = Project("x", ("ya", "yb", "yc"), ("a", "b", "c"), ("ya", "yb", "yc"))
    rows = {"x": width, "ya": 5, "yb": 40, "yc": 7}
    bench = Bench(library, 3, [op], rows, tensors)
    bench.play({"x": x}, "ya")
    for name, raw in raws.items():
        actual = bench.runner.rows[f"y{name}"][:9]
        label = bench.label(f"project_{kinds[name].name.lower()}", "16")
        tally.compare(kinds[name].name, bench, label, oracle.project(x, kinds[name], raw), actual)
    bench.close()
