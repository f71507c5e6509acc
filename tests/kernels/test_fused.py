"""Fused entries against the sequence of operators that they stand for."""

import numpy as np
import pytest

from muser.formats import BlockType
from muser.graph import Add, Project, RmsNorm, Scale, oracle
from muser.kernels import bucket_of

from .bench import Bench, Tensors, random_blocks, random_rows

COUNTS = (1, 3, 16, 17, 41)
QUANTISERS = {
    BlockType.Q4_1: ("quantise_32", 576),
    BlockType.Q4_K: ("quantise_256", 768),
    BlockType.F16: ("grid_rows", 200),
}
KINDS = pytest.mark.parametrize("kind", QUANTISERS, ids=lambda kind: kind.name)
OUT = 21


def weights(rng, kind, width):
    tensors = Tensors()
    tensors.put("w", kind, random_blocks(rng, kind, OUT, width), width)
    tensors.put_vector("factor", random_rows(rng, 1, width)[0])
    return tensors


def projected(tensors, kind, x):
    normed = oracle.rms_norm(x, tensors.vector("factor"), 1e-5)
    return oracle.project(normed, kind, tensors.tensor("w").raw.reshape(OUT, -1))


@KINDS
def test_norm_and_projection(library, threads, tally, rng, kind):
    name, width = QUANTISERS[kind]
    tensors, x = weights(rng, kind, width), random_rows(rng, 41, width)
    ops = [
        RmsNorm("x", "normed", "factor", 1e-5, "norm"),
        Project("normed", ("y",), ("w",), ("y",)),
    ]
    bench = Bench(library, threads, ops, {"x": width, "normed": width, "y": OUT}, tensors)
    y = projected(tensors, kind, x)
    for count in COUNTS:
        label = bench.label(f"norm_{name}", bucket_of(count))
        tally.compare("norm", bench, label, y[:count], bench.play({"x": x[:count]}, "y"))
    bench.close()


@KINDS
def test_sum_norm_and_projection(library, threads, tally, rng, kind):
    """The sum stays behind, in place of one of its sources."""
    name, width = QUANTISERS[kind]
    tensors = weights(rng, kind, width)
    a, b = random_rows(rng, 41, width), random_rows(rng, 41, width)
    b[9] = -a[9]
    ops = [
        Add("a", "b", "b", "add"),
        RmsNorm("b", "normed", "factor", 1e-5, "norm"),
        Project("normed", ("y",), ("w",), ("y",)),
        Scale("b", "sum", 1.0, "kept"),
    ]
    rows = {"a": width, "b": width, "normed": width, "y": OUT, "sum": width}
    bench = Bench(library, threads, ops, rows, tensors)
    total = oracle.add(a, b)
    y = projected(tensors, kind, total)
    for count in COUNTS:
        label = bench.label(f"add_norm_{name}", bucket_of(count))
        found = bench.play({"a": a[:count], "b": b[:count]}, "y")
        tally.compare("norm", bench, label, y[:count], found)
        tally.compare("add", bench, label, total[:count], bench.runner.rows["sum"][:count].copy())
    bench.close()


def test_weights_of_two_block_sizes_read_one_normed_row(library, tally, rng):
    width, x = 512, random_rows(rng, 9, 512)
    tensors = weights(rng, BlockType.Q8_0, width)
    tensors.put("other", BlockType.Q6_K, random_blocks(rng, BlockType.Q6_K, OUT, width), width)
    ops = [
        RmsNorm("x", "normed", "factor", 1e-5, "norm"),
        Project("normed", ("y", "z"), ("w", "other"), ("y", "z")),
    ]
    rows = {"x": width, "normed": width, "y": OUT, "z": OUT}
    bench = Bench(library, 3, ops, rows, tensors)
    normed = oracle.rms_norm(x, tensors.vector("factor"), 1e-5)
    for count in (1, 9):
        label = bench.label("project_q6_k", bucket_of(count))
        actual = bench.play({"x": x[:count]}, "z")
        raw = tensors.tensor("other").raw.reshape(OUT, -1)
        expected = oracle.project(normed[:count], BlockType.Q6_K, raw)
        tally.compare("Q6_K", bench, label, expected, actual)
    bench.close()


@pytest.mark.parametrize("source", ["x", "normed"])
def test_unfused_where_the_projection_reads_another_row(library, source):
    tensors = weights(np.random.default_rng(1), BlockType.Q4_1, 32)
    ops = [
        RmsNorm("x", "other" if source == "x" else "normed", "factor", 1e-5, "norm"),
        Project(source, ("y",), ("w",), ("y",)),
    ]
    rows = {"x": 32, "normed": 32, "other": 32, "y": OUT}
    bench = Bench(library, 1, ops, rows, tensors)
    names = [label.partition("[")[0] for label in bench.runner.tapes["chunk"].labels]
    fused = ["norm_quantise_32", "project_q4_1"]
    assert names == (fused if source == "normed" else ["norm", "quantise_32", "project_q4_1"])
    bench.close()
