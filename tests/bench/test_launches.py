"""`muser bench kernels --device cuda` on a tiny model and a card whose clock is set by hand."""

import numpy as np
import pytest

from muser.bench import plot
from muser.bench.breakdown import CARD_WAITS, by_label, gaps, name, place, waits
from muser.bench.kernels import run_kernels
from muser.bench.launches import ROOF_PLAYS
from muser.bench.ours import Worker
from muser.bench.record import require
from muser.bench.steps import KernelPlan, StepPlan
from muser.bench.traffic import launch_bytes, token_bytes
from muser.cli.bench_kernels import table
from muser.devices.cuda import CudaRunner, driver
from muser.devices.cuda import device as devices
from muser.devices.feeding import stretch
from muser.errors import DeviceLost, LimitError, WrongTokens
from muser.formats import GgufFile
from muser.graph import Attention, Project, TakeRows
from muser.kernels.source import read_source
from muser.models import build
from muser.models.synth import synthesise
from muser.weights import Weights
from tests.bench.fakes import FakeMachine
from tests.devices.cuda.fake_driver import EARLY, READ_RATE, START, FakeDriver, Status, cost
from tests.devices.cuda.shim_card import shim_library
from tests.kernels.cuda.shim import compiler

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="no C++ compiler for this machine's processor"
)
STEPS = (StepPlan(3, 1), StepPlan(1, 1, 4), StepPlan(0, 20))
WITHIN = 2.0  # nanoseconds: the stamp of an empty launch's play, shared out over its launches


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synthesise(path, architecture="muse-glimmer", seed=4, weights="f32", layers=4, window=2)
    return path


@pytest.fixture(scope="module")
def plan(model):
    return KernelPlan(model, STEPS, (1,), "c", plays=2, device="cuda")


@pytest.fixture(scope="module")
def card():
    """A fake driver in the place of NVIDIA's, its kernels those of the shim."""
    with pytest.MonkeyPatch.context() as patch:
        fake = FakeDriver()
        patch.setattr(driver, "driver_module", lambda: fake)
        patch.setattr(devices, "load_cuda", lambda architecture, _: shim_library(architecture))
        patch.setattr(devices, "require_conformance", lambda *_: None)
        yield fake


@pytest.fixture(scope="module")
def record(card, plan):
    return run_kernels(plan, look=FakeMachine().look())


@pytest.fixture(scope="module")
def weights(model):
    file = GgufFile.open(model)
    return Weights(file, build(file.metadata, file.tensors))


def test_every_nanosecond_is_told_once(record):
    require(record)
    [run] = record["runs"]
    assert [name(step) for step in run["steps"]] == [
        "one token at depth 3",
        "a token in each of 4 slots at depth 1",
        "20 tokens of a prompt at depth 0",
    ]
    for step in run["steps"]:
        columns = step["entries"]
        count = len(columns["ns"])
        symbols = [columns["labels"][label].split("[")[0] for label in columns["label"]]
        assert columns["ns"] == pytest.approx([cost(one, b"") for one in symbols], abs=WITHIN)
        assert step["starts_ns"] == pytest.approx(count * START, abs=count * WITHIN)
        assert step["overlapped_ns"] == pytest.approx(count * (EARLY - START), abs=0.2)
        assert step["kernels_ns"] + gaps(step) == pytest.approx(step["wall_ns"], abs=0.5)
        assert waits(step) == {what: step[key] for key, what in CARD_WAITS.items()}
        assert sum(line.entries for line in by_label(step)) == count


def test_the_record_names_the_card(record):
    [run] = record["runs"]
    assert place(run) == "Pretend 9000"
    settings = run["sides"]["ours"]["settings"]
    assert settings["device"] == "cuda"
    told = {key: settings["card"][key] for key in ("capability", "driver", "compiler")}
    assert told.pop("driver").startswith("CUDA 12.9")
    assert told == {"capability": "9.0", "compiler": "shim"}
    assert [*run["sides"]["ours"]["libraries"]] == ["cuda-sm_90a"]


def test_the_roof_is_read_before_and_behind(record, weights):
    roof = record["runs"][0]["roof"]
    assert roof["plays"] == 2 * ROOF_PLAYS
    assert roof["bytes"] == token_bytes(weights) // 256 * 256
    assert roof["median_ns"] == pytest.approx(START + roof["bytes"] / READ_RATE, rel=0.1)


def test_launches_read_what_is_laid_out_and_multiply_it(record, weights):
    graph = weights.graph
    matrices = {name for op in graph.ops if isinstance(op, Project) for name in op.weights}
    elements = sum(int(np.prod(weights.tensor(name).shape)) for name in matrices)
    cut = next(at for at, op in enumerate(graph.ops) if isinstance(op, TakeRows))
    behind = [name for op in graph.ops[cut:] if isinstance(op, Project) for name in op.weights]
    last = sum(int(np.prod(weights.tensor(name).shape)) for name in behind)
    one, four, prompt = (step["entries"] for step in record["runs"][0]["steps"])
    assert sum(one["operations"]) == 2 * elements
    assert sum(four["operations"]) == 8 * elements
    assert sum(prompt["operations"]) == 2 * (20 * (elements - last) + last)
    row = [spec.kv_heads * (4 * spec.head_dim + 1) for spec in graph.caches]
    windows = [spec.window for spec in graph.caches]
    assert {*windows} == {2, None}
    seen = sum(size * (2 if window else 4) for size, window in zip(row, windows, strict=True))
    assert sum(one["bytes"]) == token_bytes(weights) + seen
    assert sum(four["bytes"]) == token_bytes(weights) + sum(4 * 2 * size for size in row)
    assert sum(prompt["bytes"]) == token_bytes(weights) + sum(20 * size for size in row)


def test_float_weights_are_read_as_codes_and_steps(weights):
    """In blocks of 128 on their grid: two bytes an element, four a block, none for padding."""
    names = {name for op in weights.graph.ops if isinstance(op, Project) for name in op.weights}
    blocks = sum(
        -(-weights.tensor(name).shape[0] // 128) * weights.tensor(name).rows for name in names
    )
    assert token_bytes(weights) == blocks * (2 * 128 + 4)


def test_attention_reads_a_cache_once(card, model, weights):
    """The tiles of a step do, what chains them does not."""
    device = devices.CudaDevice()
    runner = device.load(weights.graph, weights, KernelPlan(model, STEPS, (1,), "c").limits(64))
    step = stretch([1, 2, 3], 0, 0, [2])
    launches = [piece.launch for piece in runner.timed(step).pieces if piece.launch is not None]
    readers = [one for one in launches if one.caches]
    assert len(readers) == sum(isinstance(op, Attention) for op in weights.graph.ops)
    assert [one.caches for one in readers] == [(layer,) for layer in range(len(readers))]
    assert all("combine" not in one.label for one in readers)
    appends = [one for one in launches if one.served == ("KV",) and not one.caches]
    assert appends
    assert all(launch_bytes(weights, weights.graph.caches, one, step) == 0 for one in appends)
    runner.close()


def test_projections_of_one_kernel_are_told_apart(record):
    labels = [line.label for line in by_label(record["runs"][0]["steps"][0])]
    assert any(label.endswith("] ffn_down") for label in labels)
    assert any("attn_q+" in label for label in labels)
    assert not any("blk." in label for label in labels)


def test_the_table_and_the_picture(record, tmp_path):
    lines = "\n".join(table(record))
    assert "roof, Pretend 9000" in lines
    assert "a token in each of 4 slots at depth 1, Pretend 9000" in lines
    assert lines.count("by the host's clock") == len(STEPS)
    assert all(lines.count(what) == len(STEPS) for what in CARD_WAITS.values())
    assert lines.count("all between the kernels") == len(STEPS)
    pytest.importorskip("matplotlib")
    plot.draw(record, tmp_path / "k.png")
    assert (tmp_path / "k.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("which", [0, 1, 2])
def test_other_bits_than_the_references_tell_no_time(card, plan, monkeypatch, which):
    honest = CudaRunner.timed

    def lying(self, step):
        timed = honest(self, step)
        timed.logits[which][-1, 0] = np.nextafter(timed.logits[which][-1, 0], np.float32(np.inf))
        return timed

    monkeypatch.setattr(CudaRunner, "timed", lying)
    record = run_kernels(plan, look=FakeMachine().look())
    assert record["runs"] == []
    assert record["failed"]["sides"]["ours"]["settings"]["card"]["name"] == "Pretend 9000"
    with pytest.raises(WrongTokens, match="1 row at depth 3: the last logits"):
        require(record)


def test_another_choice_tells_no_time(card, plan, monkeypatch):
    honest = CudaRunner.choose
    monkeypatch.setattr(CudaRunner, "choose", lambda self, step: honest(self, step) + 1)
    with pytest.raises(WrongTokens, match="its logits say otherwise"):
        require(run_kernels(plan, look=FakeMachine().look()))


def test_a_side_on_a_card_names_it(card, model):
    worker = Worker("cuda")
    worker.do_load(str(model), threads=1, context=8, slots=2)
    settings = worker.do_identity()["settings"]
    assert (settings["device"], settings["card"]["name"]) == ("cuda", "Pretend 9000")
    assert settings["card"]["kernel_texts_sha256"] == read_source("cuda").digest
    worker.do_load(str(model), threads=1, context=9, slots=2)
    worker.close()
    worker = Worker("cpu")
    worker.do_load(str(model), threads=1, context=8, slots=2)
    assert "card" not in worker.do_identity()["settings"]
    worker.close()


def test_a_card_that_is_lost_is_one_error(card, plan, monkeypatch):
    def lost(self, *_):
        self.answers["cuStreamSynchronize"] = Status.CUDA_ERROR_ILLEGAL_ADDRESS
        return (Status.CUDA_ERROR_ILLEGAL_ADDRESS,)

    before = dict(card.held)
    monkeypatch.setattr(FakeDriver, "cuEventElapsedTime", lost)
    record = run_kernels(plan, look=FakeMachine().look())
    card.answers.clear()
    with pytest.raises(DeviceLost, match="The CUDA card is lost"):
        require(record)
    left = [thing for handle, thing in card.held.items() if handle not in before]
    assert left == ["stream"]  # the device's own, which lives as long as the process


def test_a_model_too_large_for_the_card_is_one_error(card, plan, monkeypatch):
    monkeypatch.setattr(card, "memory", 256 << 20)
    with pytest.raises(LimitError, match=r"Pretend 9000, which has 0\.00 GB free"):
        require(run_kernels(plan, look=FakeMachine().look()))
