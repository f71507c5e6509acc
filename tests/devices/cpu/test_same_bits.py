"""One model, one answer: every chunking, thread count, instruction set and mix of slots.

The oracle gives the logits of a whole sequence once; caches there never wrap. The CPU device must
return the same bytes, at positions inside the window and long after its rings have gone round.
"""

from functools import cache

import numpy as np
import pytest

from muser.devices import CpuDevice, Limits, Step
from muser.formats import GgufFile
from muser.graph.interpreter import Interpreter
from muser.kernels import ISA_BITS, Shelf, choose_library, supported_isas
from muser.kernels.compiler import isas_of, target_machine
from muser.models import build
from muser.models.synth import synthesise
from muser.places import libraries
from muser.weights import Weights

LENGTH = 300  # rings of a window of 8 hold 128 or 256 rows here: they go round
MODELS = [
    ("llama", "q8_0"),
    ("llama", "q4_0"),
    ("llama", "q4_1"),
    ("llama", "q5_0"),
    ("llama", "q5_1"),
    ("llama", "f16"),
    ("llama", "bf16"),
    ("muse-glimmer", "census"),  # Q4_K, Q5_K and Q6_K, shrunk by SMALL
    ("muse-glimmer", "f32"),
    ("gemma3", "census"),  # Q8_0, Q5_0, Q4_K and Q6_K in one file, one KV head of 256
    ("gemma3", "f32"),
]
SMALL = {
    "layers": 8, "width": 256, "ffn": 768, "heads": 16, "kv_heads": 2, "head_dim": 32,
    "vocabulary": 320, "window": 8, "context": 1024,
}  # fmt: skip


@pytest.fixture(scope="session", params=MODELS, ids="-".join)
def model(request, tmp_path_factory):
    """File, graph, weights, token ids `[LENGTH]` and the oracle's logits `[LENGTH, vocabulary]`."""
    architecture, kind = request.param
    path = tmp_path_factory.mktemp("same-bits") / f"{architecture}-{kind}.gguf"
    sizes = SMALL if kind == "census" else {}
    if sizes and architecture == "gemma3":
        sizes = {**SMALL, "layers": 7, "heads": 4, "kv_heads": 1, "head_dim": 256}
    synthesise(path, architecture=architecture, weights=kind, seed=11, **sizes)
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


def run(runner, ids, cuts, slot=0):
    """Logits of every position, the sequence cut into steps of `cuts` rows, repeated."""
    rows, start = [], 0
    while start < len(ids):
        for size in cuts:
            part = ids[start : start + size]
            if len(part):
                positions = np.arange(start, start + len(part), dtype=np.int32)
                slots = np.full(len(part), slot, np.int32)
                every = np.arange(len(part), dtype=np.int32)
                rows.append(runner.forward(Step(part, positions, slots, every)))
            start += len(part)
    return np.concatenate(rows)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_chunking_gives_the_oracles_bytes(model, isa, threads):
    graph, weights, ids, expected = model
    runner = device(isa, threads).load(graph, weights, Limits(LENGTH, 1, 128))
    for cuts in ([1], [2, 3, 1], [5, 16, 17], [64], [128], [100, 1, 1, 33]):
        assert run(runner, ids, cuts).tobytes() == expected.tobytes(), cuts
    runner.close()


def test_rows_of_several_sequences_in_one_step(model, isa):
    """Three slots at different places, mixed in steps of 2 to 16 rows."""
    graph, weights, ids, expected = model
    runner = device(isa, 2).load(graph, weights, Limits(LENGTH, 3, 64))
    held = [0, 150, 37]
    for slot, length in enumerate(held):
        if length:
            run(runner, ids[:length], [64], slot)
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
    run(runner, ids[:140], [64])
    wrong = (ids[140:150] + 1) % graph.vocabulary
    span = np.arange(140, 150, dtype=np.int32)
    zeros, none = np.zeros(10, np.int32), np.empty(0, np.int32)
    runner.forward(Step(wrong.astype(np.int32), span, zeros, none))
    right = runner.forward(Step(ids[140:150], span, zeros, np.arange(10, dtype=np.int32)))
    assert right.tobytes() == expected[140:150].tobytes()
    runner.close()


def test_a_used_runner_forgets_the_sequence_before(model):
    graph, weights, ids, expected = model
    runner = device(sets()[-1], 2).load(graph, weights, Limits(LENGTH, 1, 64))
    run(runner, ids[::-1].copy(), [64])
    assert run(runner, ids[:50], [50]).tobytes() == expected[:50].tobytes()
    runner.close()
