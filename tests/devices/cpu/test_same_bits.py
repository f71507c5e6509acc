"""One model, one answer: every chunking, thread count, instruction set and mix of slots.

The oracle gives the logits of a whole sequence once; caches there never wrap. The CPU device must
return the same bytes, at positions inside the window and long after its rings have gone round.
"""

from functools import cache

import numpy as np
import pytest

from muser.devices import CpuDevice, Limits, Step
from muser.devices.feeding import logits_of, stretch
from muser.formats import GgufFile
from muser.graph.interpreter import Interpreter
from muser.kernels import ISA_BITS, Shelf, choose_library, supported_isas
from muser.kernels.compiler import isas_of, target_machine
from muser.models import build
from muser.models.synth import TINY, make_tiny
from muser.places import libraries
from muser.weights import Weights

LENGTH = 300  # rings of a window of 8 hold 128 or 256 rows here: they go round


@pytest.fixture(scope="session", params=TINY, ids="-".join)
def model(request, tmp_path_factory):
    """File, graph, weights, token ids `[LENGTH]` and the oracle's logits `[LENGTH, vocabulary]`."""
    architecture, kind = request.param
    path = tmp_path_factory.mktemp("same-bits") / f"{architecture}-{kind}.gguf"
    make_tiny(path, architecture, kind)
    file = GgufFile.open(path)
    graph = build(file.metadata, file.tensors)
    ids = np.random.default_rng(2).integers(0, graph.vocabulary, LENGTH, dtype=np.int32)
    every = range(LENGTH)
    expected = Interpreter(graph, file, LENGTH).forward(ids, every, [0] * LENGTH, every)
    assert np.unique(expected.argmax(axis=1)).size > 5, "the model must not say one thing only"
    return graph, Weights(file, graph), ids, expected


@cache
def sets() -> tuple[str, ...]:
    """The instruction sets of this machine, the best one last."""
    return supported_isas(choose_library(Shelf(libraries()), "c"))


@pytest.fixture(params=[isa for isa in ISA_BITS if isa in isas_of(target_machine())])
def isa(request):
    if request.param not in sets():
        pytest.skip(f"this processor has no {request.param}")
    return request.param


@cache
def device(isa: str, threads: int) -> CpuDevice:
    return CpuDevice(threads=threads, isa=isa)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_chunking_gives_the_oracles_bytes(model, isa, threads):
    graph, weights, ids, expected = model
    runner = device(isa, threads).load(graph, weights, Limits(LENGTH, 1, 128))
    for cuts in ([1], [2, 3, 1], [5, 16, 17], [64], [128], [100, 1, 1, 33]):
        assert logits_of(runner, ids, cuts).tobytes() == expected.tobytes(), cuts
    runner.close()


def test_rows_of_several_sequences_in_one_step(model, isa):
    """Three slots at different places, mixed in steps of 2 to 16 rows."""
    graph, weights, ids, expected = model
    runner = device(isa, 2).load(graph, weights, Limits(LENGTH, 3, 64))
    held = [0, 150, 37]
    for slot, length in enumerate(held):
        if length:
            logits_of(runner, ids[:length], [64], slot)
    rng = np.random.default_rng(9)
    for _ in range(25):
        counts = rng.integers(0, 6, 3)
        if not counts.sum():
            continue
        slots = np.repeat(np.arange(3, dtype=np.int32), counts)
        positions = np.concatenate([held[s] + np.arange(counts[s]) for s in range(3)])
        wanted = np.flatnonzero(rng.integers(0, 2, len(slots))).astype(np.int32)
        step = Step(ids[positions], positions.astype(np.int32), slots, wanted)
        assert runner.forward(step).tobytes() == expected[positions[wanted]].tobytes()
        held = [held[s] + int(counts[s]) for s in range(3)]
    runner.close()


def test_rows_that_are_written_again_leave_no_trace(model):
    """A rejected draft: rows are appended, then the sequence goes on from before them."""
    graph, weights, ids, expected = model
    best = sets()[-1]
    runner = device(best, 2).load(graph, weights, Limits(LENGTH, 1, 64))
    logits_of(runner, ids[:140], [64])
    wrong = (ids[140:150] + 1) % graph.vocabulary
    runner.forward(stretch(wrong, 140))
    right = runner.forward(stretch(ids[140:150], 140, 0, range(10)))
    assert right.tobytes() == expected[140:150].tobytes()
    runner.close()


def test_a_used_runner_forgets_the_sequence_before(model):
    graph, weights, ids, expected = model
    runner = device(sets()[-1], 2).load(graph, weights, Limits(LENGTH, 1, 64))
    logits_of(runner, ids[::-1].copy(), [64])
    assert logits_of(runner, ids[:50], [50]).tobytes() == expected[:50].tobytes()
    runner.close()
