"""Every operator and weight type has a kernel on every architecture, and each launch fits it."""

from typing import get_args

import numpy as np
import pytest

from muser.devices.cuda import CudaRunner
from muser.devices.device import Limits, Step
from muser.devices.proofs import OneOperator, operator_checks
from muser.formats import BlockType, GgufFile
from muser.graph import Activation, Add, Argmax, Embed, GatedAct, Graph, Op, Project, RmsNorm
from muser.kernels import CudaLibrary
from muser.kernels.cuda_registry import FLOATS, QUANTISED, units_of
from muser.models import build
from muser.models.synth import CENSUS_SIZES, synthesise
from muser.weights import BoundTensor, Weights

from .images import ARCHITECTURES
from .paper_card import PaperCard

CHUNK = 256
STEPS = (1, 3, 16, CHUNK)  # a row count of each bucket
MODELS = (
    *(("llama", kind) for kind in (*QUANTISED[:5], *FLOATS)),
    ("muse-glimmer", "census"),
    ("gemma3", "census"),
)
LEAST_SHARED = 101_376  # bytes: the cards of 8.6, 8.9 and 12.0 have no more


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def model(request, tmp_path_factory):
    architecture, kind = request.param
    path = tmp_path_factory.mktemp("pipelines") / "m.gguf"
    synthesise(
        path, architecture=architecture, weights=kind, **(CENSUS_SIZES if kind == "census" else {})
    )
    file = GgufFile.open(path)
    graph = build(file.metadata, file.tensors)
    return graph, Weights(file, graph)


def paper_library(architecture):
    names = units_of(architecture)
    return CudaLibrary(architecture, "paper", "0" * 64, {name: name.encode() for name in names})


@pytest.fixture(params=ARCHITECTURES)
def card(request, images):
    architecture = request.param
    return PaperCard(
        architecture, {u: images.unit(architecture, u) for u in units_of(architecture)}
    )


def check(card):
    """Every launch within what the card and the kernel allow; the struct is the kernel's own."""
    assert card.launches
    for symbol, use, shape, argument in card.launches:
        assert argument == use.argument, symbol
        assert 0 < shape.block <= (use.threads or 1024), symbol
        assert shape.block % 32 == 0, symbol
        assert use.shared + shape.shared <= card.facts.shared, (symbol, shape)
        assert min(shape.grid) > 0, symbol
        assert max(shape.grid[1:]) < 65_536, symbol
        if symbol.startswith("decode_") and shape.grid[0] <= card.facts.processors:
            is_chain = symbol == "decode_combine"
            assert is_chain or 2 * shape.shared > card.facts.shared, symbol  # has it alone


def play(card, architecture, graph, weights):
    limits = Limits(graph.context, 2, CHUNK)
    runner = CudaRunner(card, paper_library(architecture), graph, weights, limits)
    for count in STEPS:
        every = np.arange(count, dtype=np.int32)
        zeros = np.zeros(count, np.int32)
        for outputs in (every, every[-1:], every[:0]):
            runner.play(Step(zeros, every, zeros, outputs))
    return runner


def test_every_model_is_lowered_for_every_architecture(model, card, request):
    architecture = request.node.callspec.params["card"]
    runner = play(card, architecture, *model)
    check(card)
    graph, weights = model
    read = {name for op in graph.ops for name in getattr(op, "weights", ())}
    types = {weights.tensor(name).type.name for name in read}
    assert {*runner.labels} == types | {"KV", "rows"}


def test_every_operator_and_weight_type_is_lowered_alone(card, request):
    """The graphs of one operator by which a card proves itself; nothing is computed."""
    architecture = request.node.callspec.params["card"]
    library, seen = paper_library(architecture), set()

    def opens(graph, weights, limits):
        seen.update(type(op) for op in graph.ops)
        return CudaRunner(card, library, graph, weights, limits)

    for _ in operator_checks(opens):
        pass
    for kind in (*QUANTISED, *FLOATS):
        tensors = OneOperator({"w": weight_of(BlockType[kind.upper()])})
        for op in (Embed("y", "w", "embed"), Project("x", ("y",), ("w",), ("project",))):
            runner = opens(graph_of(op), tensors, Limits(CHUNK, 1, CHUNK))
            for count in STEPS:
                every = np.arange(count, dtype=np.int32)
                runner.play(Step(every * 0, every, every * 0, every))
            assert kind.upper() in runner.labels or isinstance(op, Embed)
    check(card)


def weight_of(kind, name="w"):
    """256 × 40 of zeros."""
    size = 256 * 40 // kind.elements * kind.bytes
    return BoundTensor(name, kind, (256, 40), np.zeros(size, np.uint8))


def graph_of(op):
    return Graph("check", (op,), {"x": 256, "y": 256 if isinstance(op, Embed) else 40}, {}, (), {},
                 vocabulary=40, context=CHUNK)  # fmt: skip


def test_every_operator_is_in_a_model(tmp_path):
    """So that the models above meet each rule of the lowering table."""
    seen = set()
    for architecture in ("llama", "muse-glimmer", "gemma3"):
        synthesise(tmp_path / architecture, architecture=architecture)
        with GgufFile.open(tmp_path / architecture) as file:
            seen.update(type(op) for op in build(file.metadata, file.tensors).ops)
    assert seen == {*get_args(Op)} - {Argmax}  # which every tail ends with


@pytest.mark.parametrize("architecture", ["sm_80", "sm_120"])
def test_launches_fit_into_the_least_shared_memory(model, images, architecture):
    units = {unit: images.unit(architecture, unit) for unit in units_of(architecture)}
    card = PaperCard(architecture, units, LEAST_SHARED)
    play(card, architecture, *model)
    check(card)


def chunk_kernels(card, architecture, graph, weights):
    """What a chunk launches, of which the last row's logits are wanted."""
    limits = Limits(graph.context, 1, CHUNK)
    runner = CudaRunner(card, paper_library(architecture), graph, weights, limits)
    every = np.arange(CHUNK, dtype=np.int32)
    runner.play(Step(every * 0, every, every * 0, every[-1:]))
    launches = (launch for tape in runner._played for launch in tape.launches)
    return [symbol for symbol, _ in (launch.kernel for launch in launches)]


def test_norms_of_a_chunk_go_straight_into_tiles(model, card, request):
    """Two a layer; the last one of all belongs to the wanted rows."""
    graph, weights = model
    names = chunk_kernels(card, request.node.callspec.params["card"], graph, weights)
    assert sum("norm_tiles" in name for name in names) == 2 * len(graph.caches) - 1
    assert not {"add_norm", "norm_add_norm"} & {*names}


NORM = RmsNorm("x", "normed", None, 1e-5, "norm")
READS = Project("normed", ("y",), ("k",), ("projection",))
UNFUSED = {
    "tiles of two forms": (NORM, Project("normed", ("y", "z"), ("k", "b"), ("one", "other"))),
    "read again": (NORM, READS, Add("normed", "x", "x", "sum")),
    "another row": (NORM, Project("x", ("y",), ("k",), ("projection",))),
    "a branch that is read again": (
        RmsNorm("branch", "branch", None, 1e-5, "norm of the branch"),
        Add("branch", "x", "x", "sum"),
        NORM,
        READS,
        Add("branch", "x", "x", "again"),
    ),
}


def test_gated_rows_of_a_chunk_go_straight_into_tiles(model, card, request):
    names = chunk_kernels(card, request.node.callspec.params["card"], *model)
    assert not {"silu_gate", "gelu_gate"} & {*names}


@pytest.mark.parametrize("weights", [("k",), ("k", "b")], ids=len)
@pytest.mark.parametrize("again", [False, True])
def test_a_gated_row_that_others_see_is_written(images, weights, again):
    act = GatedAct("x", "branch", "x", Activation.SILU, "act")
    outs = ("y", "z")[: len(weights)]
    after = (Add("x", "normed", "x", "sum"),) if again else ()
    names = kernels_of(images, (act, Project("x", outs, weights, outs), *after))
    assert ("silu_gate" in names) == (again or len(weights) > 1)
    assert ("gated_tiles_k" in names) == (not again and len(weights) == 1)


def kernels_of(images, ops):
    """What a chunk launches of operators on rows of 256, and `k` and `b` of two forms of tiles."""
    units = {unit: images.unit("sm_90a", unit) for unit in units_of("sm_90a")}
    tensors = OneOperator(
        {"k": weight_of(BlockType.Q4_K, "k"), "b": weight_of(BlockType.Q8_0, "b")}
    )
    rows = {"x": 256, "branch": 256, "normed": 256, "y": 40, "z": 40}
    graph = Graph("check", ops, rows, {}, (), {}, vocabulary=40, context=CHUNK)
    return chunk_kernels(PaperCard("sm_90a", units), "sm_90a", graph, tensors)


@pytest.mark.parametrize("case", UNFUSED)
def test_a_normed_row_that_others_see_is_written(images, case):
    names = kernels_of(images, UNFUSED[case])
    assert any(name in ("rms_norm", "add_norm", "norm_add_norm") for name in names)
