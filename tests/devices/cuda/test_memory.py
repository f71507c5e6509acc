"""A card's memory: what a model takes was in its plan, and is taken before its first step."""

from functools import partial

import numpy as np
import pytest

from muser.devices import Limits, Step
from muser.devices.cuda import CudaRunner, moving, pinned
from muser.devices.cuda.memory import SPARE, Memory, Plan
from muser.devices.cuda.placing import WORKERS, matrices_of
from muser.devices.cuda.scratch import Extent, scratch_of
from muser.errors import LimitError
from muser.formats import GgufFile
from muser.graph import Attention, CacheSpec, Graph
from muser.models import build
from muser.models.synth import CENSUS_SIZES, synthesise
from muser.weights import Weights
from tests.devices.cuda.shim_card import ShimCard, shim_library

LENGTH = 80
MODELS = (("llama", "q8_0"), ("llama", "bf16"), ("muse-glimmer", "census"), ("gemma3", "census"))
CHUNKS = (1, 3, 16, 17, 64)


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def model(request, tmp_path_factory):
    architecture, kind = request.param
    path = tmp_path_factory.mktemp("memory") / "m.gguf"
    sizes = {**CENSUS_SIZES, "layers": 3} if kind == "census" else {}
    synthesise(path, architecture=architecture, weights=kind, seed=11, **sizes)
    file = GgufFile.open(path)
    graph = build(file.metadata, file.tensors)
    return graph, Weights(file, graph)


@pytest.fixture
def plans(monkeypatch):
    """Every plan that was compared with a card's memory."""
    seen, whole = [], Plan.check
    monkeypatch.setattr(Plan, "check", lambda self, card: (seen.append(self), whole(self, card)))
    return seen


def step(first, count):
    span = np.arange(first, first + count, dtype=np.int32)
    return Step(span, span, np.zeros_like(span), span - first)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_all_that_is_taken_was_in_the_plan(model, plans, architecture, chunk):
    """By every bucket that the chunk allows, and by what goes in and out of the caches."""
    graph, weights = model
    card = ShimCard(architecture)
    runner = CudaRunner(card, shim_library(architecture), graph, weights, Limits(LENGTH, 2, chunk))
    first = 0
    for count in (1, 3, 16, 17):
        if count <= chunk:
            runner.forward(step(first, count))
            first += count
    runner.import_rows(0, 1, 0, *runner.export_rows(0, 0, 0, first))
    (plan,) = plans
    assert runner.memory == plan.parts
    assert card.taken == plan.total


def test_nothing_is_taken_after_the_loading(model, monkeypatch):
    """Rows and caches of any size go through the same places, in pieces."""
    graph, weights = model
    monkeypatch.setattr(moving, "PIECE", 1000)
    monkeypatch.setattr(pinned, "PIECE", 1000)
    card = ShimCard("sm_90a")
    runner = CudaRunner(card, shim_library("sm_90a"), graph, weights, Limits(LENGTH, 2, 64))
    monkeypatch.setattr(card, "allocate", None)
    monkeypatch.setattr(card, "pinned", None)
    expected = runner.forward(step(0, 40))
    for count in (1, 7, 40):
        for layer, spec in enumerate(graph.caches):
            rows = runner.export_rows(layer, 0, 0, count)
            assert rows[0].shape == rows[1].shape == (count, spec.kv_heads, spec.head_dim)
            runner.import_rows(layer, 1, 0, *rows)
            again = runner.export_rows(layer, 1, 0, count)
            assert [one.tobytes() for one in again] == [one.tobytes() for one in rows]
            alone = [runner.export_rows(layer, 0, at, at + 1) for at in range(count)]
            for one, parts in zip(rows, zip(*alone, strict=True), strict=True):
                assert one.tobytes() == np.concatenate(parts).tobytes()
                assert len(np.unique(one, axis=0)) == count
    name = graph.ops[0].target
    numbers = np.arange(64 * graph.rows[name], dtype=np.float32).reshape(64, -1)
    runner.put_rows(name, numbers)
    assert runner.get_rows(name, 64).tobytes() == numbers.tobytes()
    assert runner.forward(step(0, 40)).tobytes() == expected.tobytes()


def test_pinned_memory_grows_neither_with_norms_nor_with_the_context(model, monkeypatch):
    """Norms and rotation tables go through the one piece that everything goes through."""
    graph, weights = model
    sizes = []
    monkeypatch.setattr(ShimCard, "pinned", lambda self, size: sizes.append(size) or whole(size))
    whole = partial(np.zeros, dtype=np.uint8)
    CudaRunner(ShimCard("sm_80"), shim_library("sm_80"), graph, weights, Limits(8, 1, 1)).close()
    few, _ = sizes.copy(), sizes.clear()
    limits = Limits(graph.context, 1, 1)
    CudaRunner(ShimCard("sm_80"), shim_library("sm_80"), graph, weights, limits).close()
    assert sizes == few
    blocks, hands = 2 * 2, 3 * min(WORKERS, len(matrices_of(graph)))
    assert len(sizes) == 1 + blocks + hands


def test_a_card_that_lacks_room_for_the_last_part_refuses_the_model(model, plans):
    graph, weights = model
    limits = Limits(LENGTH, 1, 64)
    CudaRunner(ShimCard("sm_90a"), shim_library("sm_90a"), graph, weights, limits).close()
    (plan,) = plans
    assert plan.parts["scratch"] > 0
    card = ShimCard("sm_90a", memory=plan.total + SPARE - 1)
    with pytest.raises(LimitError, match=r"takes weights .* \+ scratch .* of the shim, which has"):
        CudaRunner(card, shim_library("sm_90a"), graph, weights, limits)
    assert (card.taken, card.closed) == (0, True)
    enough = ShimCard("sm_90a", memory=plan.total + SPARE)
    CudaRunner(enough, shim_library("sm_90a"), graph, weights, limits).close()


def test_the_largest_rooms_of_attention():
    """Alone they are more than what a card keeps for its driver: sixteen rows, a long context."""
    attention = Attention("q", "o", 0, 32, 128**-0.5, "attention")
    graph = Graph(
        "check",
        (attention,),
        {"q": 4096, "o": 4096},
        {},
        (CacheSpec(4, 128, None),),
        {},
        vocabulary=1,
        context=1 << 17,
    )
    sizes = scratch_of(graph, None, Extent(Limits(1 << 17, 1, 2048), 132, True))
    assert sizes["tile_out"] == 16 * 32 * 1024 * 128 * 4 == SPARE
    assert sizes["tile_sums"] == 16 * 32 * 1024 * 16


def test_a_room_is_never_larger_than_planned(model):
    """A rule that asks for more than it was asked to plan stops the loading."""
    graph, weights = model
    short = Memory.rooms

    def less(self, name, sizes):
        return short(self, name, {room: size - 1 for room, size in sizes.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Memory, "rooms", less)
        with pytest.raises(AssertionError):
            CudaRunner(
                ShimCard("sm_80"), shim_library("sm_80"), graph, weights, Limits(LENGTH, 1, 64)
            )


def test_a_chunk_of_more_rows_than_a_grid_is_refused(model):
    graph, weights = model
    card, limits = ShimCard("sm_90a"), Limits(70_000, 1, 65_536)
    with pytest.raises(LimitError, match="more than the 65,535"):
        CudaRunner(card, shim_library("sm_90a"), graph, weights, limits)
    assert (card.taken, card.closed) == (0, True)
