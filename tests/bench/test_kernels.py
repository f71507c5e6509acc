"""`muser bench kernels` on tiny models: traffic, sums, wrong bits, table and picture."""

import numpy as np
import pytest

from muser.bench import entries, plot
from muser.bench.breakdown import CPU_WAITS, by_label, gaps, name
from muser.bench.kernels import run_kernels
from muser.bench.record import require
from muser.bench.steps import KernelPlan, StepPlan
from muser.bench.traffic import cache_bytes, products, weight_bytes
from muser.cli.bench_kernels import table
from muser.devices import Limits
from muser.devices.cpu import CpuDevice
from muser.errors import UsageError, WrongTokens
from muser.formats import GgufFile
from muser.graph import Project, TakeRows
from muser.models import build
from muser.models.synth import synthesise
from muser.weights import Weights
from tests.bench.fakes import FakeMachine
from tests.kernels.bench import step_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synthesise(path, architecture="muse-glimmer", seed=4, weights="F32", window=8)
    return path


@pytest.fixture(scope="module")
def plan(model):
    return KernelPlan(model, (StepPlan(3, 1), StepPlan(0, 20)), (1, 2), "c", plays=5)


@pytest.fixture(scope="module")
def record(plan):
    return run_kernels(plan, look=FakeMachine().look())


def test_every_step_is_accounted_for(record):
    assert [run["threads"] for run in record["runs"]] == [1, 2]
    for run in record["runs"]:
        assert run["roof"]["plays"] == 2 * entries.ROOF_PLAYS
        assert run["roof"]["bytes"] > 0
        for step in run["steps"]:
            parts = step["kernels_ns"] + gaps(step)
            assert parts == pytest.approx(step["wall_ns"], abs=1.0)
            columns = step["entries"]
            assert sum(columns["ns"]) == pytest.approx(step["kernels_ns"], rel=1e-3)
            sizes = {len(values) for key, values in columns.items() if key != "labels"}
            assert len(sizes) == 1
            lines = by_label(step)
            assert sum(line.entries for line in lines) == sizes.pop()
            assert sum(line.bytes for line in lines) == sum(columns["bytes"])
    assert [name(step) for step in record["runs"][0]["steps"]] == [
        "one token at depth 3",
        "20 tokens of a prompt at depth 0",
    ]


def test_one_token_reads_every_projection_once(record, model):
    file = GgufFile.open(model)
    graph = build(file.metadata, file.tensors)
    weights = Weights(file, graph)
    matrices = [
        each
        for each in weights.tensors.values()
        if len(each.shape) == 2 and "token_embd" not in each.name
    ]
    elements = sum(each.shape[0] * each.shape[1] for each in matrices)
    columns = record["runs"][0]["steps"][0]["entries"]
    assert sum(columns["operations"]) == 2 * elements
    assert record["runs"][0]["roof"]["bytes"] == 2 * elements  # grid codes of float weights
    columns = record["runs"][0]["steps"][1]["entries"]
    cut = next(at for at, op in enumerate(graph.ops) if isinstance(op, TakeRows))
    behind = [name for op in graph.ops[cut:] if isinstance(op, Project) for name in op.weights]
    last = sum(weights.tensor(name).raw.size // 4 for name in behind)  # F32
    assert sum(columns["operations"]) == 2 * (20 * (elements - last) + last)


def test_a_token_in_each_of_some_slots(model):
    plan = KernelPlan(model, (StepPlan(3, 1), StepPlan(3, 1, 5)), (2,), "c", plays=2)
    record = run_kernels(plan, look=FakeMachine().look())
    require(record)
    one, five = record["runs"][0]["steps"]
    assert name(five) == "a token in each of 5 slots at depth 3"
    assert (one["rows"], one["slots"], five["rows"], five["slots"]) == (1, 1, 5, 5)
    sums = [sum(step["entries"]["operations"]) for step in (one, five)]
    assert sums[1] == 5 * sums[0]


def test_attention_reads_what_its_window_shows(model):
    file = GgufFile.open(model)
    graph = build(file.metadata, file.tensors)
    weights = Weights(file, graph)
    runner = CpuDevice(1).load(graph, weights, Limits(context=40, slots=2, chunk=20))
    windows = [spec.window for spec in graph.caches]
    assert None in windows
    assert 8 in windows
    moves = [
        move
        for move in runner.tapes["chunk"].moves
        if any(name.startswith("cache ") for name in move.reads)
    ]
    assert len(moves) == len(windows)
    step = step_of(6, positions=[10, 11, 12, 30, 31, 32], slots=[0, 0, 0, 1, 1, 1])
    for move, window, cache in zip(moves, windows, runner.caches, strict=True):
        row = cache_bytes([cache] * len(windows), move, step_of(1, positions=[0]))
        assert row >= 2 * cache.spec.kv_heads * cache.spec.head_dim * 2
        seen = 13 + 33 if window is None else 10 + 10
        assert cache_bytes(runner.caches, move, step) == seen * row
        assert weight_bytes(weights, move.tensors) == products(weights, move, step) == 0
    runner.close()


@pytest.mark.parametrize("which", ["forward", "forward_timed"])
def test_other_bits_than_the_references_tell_no_time(plan, monkeypatch, which):
    from muser.devices.cpu import CpuRunner

    honest = getattr(CpuRunner, which)

    def lying(self, step):
        answer = honest(self, step)
        logits = answer if which == "forward" else answer[0]
        if logits.size:
            logits[-1, 0] = np.nextafter(logits[-1, 0], np.float32(np.inf))
        return answer

    monkeypatch.setattr(CpuRunner, which, lying)
    record = run_kernels(plan, look=FakeMachine().look())
    assert record["runs"] == []
    assert record["failed"]["sides"]["ours"]["libraries"]
    with pytest.raises(WrongTokens, match="1 row at depth 3: the last logits"):
        require(record)


def test_the_table_has_every_pipeline_and_every_wait(record):
    lines = "\n".join(table(record))
    for step in record["runs"][0]["steps"]:
        for line in by_label(step):
            assert line.label in lines
    assert lines.count("all of it, on the wall") == 4
    assert all(lines.count(what) == 4 for what in CPU_WAITS.values())


def test_the_picture_is_a_png(record, tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw(record, tmp_path / "k.png")
    data = (tmp_path / "k.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    plot.draw(record, tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == data


def test_a_missing_library_has_a_remedy(record, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'muser\[plots\]'"):
        plot.draw(record, tmp_path / "k.png")
