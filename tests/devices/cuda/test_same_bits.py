"""One model, one answer: every row bucket, mix of slots and format through the whole CUDA device.

The card is the shim: the kernels' own texts, run on the CPU. It is slow, so sequences are short; a
ring of a window of 8 holds 128 rows here, and only the test of rings goes round one.
"""

import numpy as np
import pytest

from muser.devices import Limits, Step
from muser.devices.cuda import CudaRunner, attending, tapes
from muser.devices.cuda.buckets import HEAD_ROWS
from muser.devices.feeding import logits_of, stretch
from muser.errors import DeviceError
from muser.models.synth import CENSUS_SIZES, TINY, make_tiny
from tests.devices.cuda.shim_card import ShimCard, shim_library
from tests.devices.cuda.small import with_oracle

LENGTH = 40
CUTS = (17, 5, 3, 1, 14)
"""A step of each row bucket, the largest first: later rows look at what it stored."""
NARROW = [("llama", "q4_1"), ("llama", "bf16"), ("muse-glimmer", "census")]
RINGS = [("muse-glimmer", "census"), ("gemma3", "census")]
RINGS_LENGTH, CHUNK = 150, 64


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(("llama", "q8_0"), length)`: graph, weights, ids and the oracle's logits, made once."""
    kept = {}

    def make(model, length=LENGTH):
        if (model, length) not in kept:
            path = tmp_path_factory.mktemp("same-bits") / "m.gguf"
            kept[model, length] = _made(path, *model, length)
        return kept[model, length]

    return make


def _made(path, architecture, kind, length, **sizes):
    make_tiny(path, architecture, kind, **sizes)
    return with_oracle(path, length)


def load(architecture, graph, weights, limits, seed=0):
    card = ShimCard(architecture, seed=seed)
    return CudaRunner(card, shim_library(architecture), graph, weights, limits)


def steps(ids, cuts, slot=0):
    """The sequence in steps of `cuts` rows, all of them wanted."""
    first = 0
    for size in cuts:
        rows = slice(first, first + size)
        yield stretch(ids[rows], first, slot, range(size)), rows
        first += size
    assert first == len(ids)


@pytest.mark.parametrize("model", TINY, ids="-".join)
def test_every_row_bucket_gives_the_oracles_bytes(made, model):
    graph, weights, ids, expected = made(model)
    runner = load("sm_90a", graph, weights, Limits(LENGTH, 2, CHUNK))
    for step, rows in steps(ids, CUTS):
        assert runner.forward(step).tobytes() == expected[rows].tobytes(), rows
    for step, rows in steps(ids, CUTS[::-1], slot=1):
        assert runner.choose(step).tolist() == expected[rows].argmax(axis=1).tolist(), rows
    types = {
        weights.tensor(name).type.name for op in graph.ops for name in getattr(op, "weights", ())
    }
    assert types | {"KV", "rows"} == set(runner.labels)


@pytest.mark.parametrize("reaches", [(), (5, 9, 18)], ids=len)
@pytest.mark.parametrize("model", NARROW, ids="-".join)
def test_short_steps_and_others(made, monkeypatch, model, reaches):
    """Steps below a border have tapes of their own. To those a tile is a position."""
    few, more, most = reaches or (0, 0, 0)
    monkeypatch.setattr(tapes, "REACHES", reaches)
    monkeypatch.setattr(attending, "FEW_TILES", few)
    monkeypatch.setattr(attending, "MORE_TILES", more)
    monkeypatch.setattr(attending, "MOST_TILES", most)
    monkeypatch.setattr(attending, "most_tiles", lambda low, places: low.reach)
    graph, weights, ids, expected = made(model)
    runner = load("sm_90a", graph, weights, Limits(LENGTH, 1, CHUNK))
    for step, rows in steps(ids, (1, 3, 5, 8, 1, 1, 1, 4, 16)):
        runner.resume()  # labels are of what is played from here on
        assert runner.forward(step).tobytes() == expected[rows].tobytes(), rows
        played = {label.split("[")[0] for label in runner.labels["KV"]}
        stop = rows.stop if model[1] == "census" else LENGTH
        borders = {"combine_256": few, "combine_more_256": more, "combine_most_256": most}
        last = "combine_turns_256" if model[1] == "census" else "decode_combine"
        chain = next((name for name, border in borders.items() if stop <= border), last)
        assert {x for x in played if "combine" in x} == {chain}


@pytest.mark.parametrize("model", NARROW, ids="-".join)
def test_a_card_without_bulk_copies(made, model):
    graph, weights, ids, expected = made(model)
    runner = load("sm_80", graph, weights, Limits(LENGTH, 1, CHUNK))
    for step, rows in steps(ids, CUTS):
        assert runner.forward(step).tobytes() == expected[rows].tobytes(), rows


def heads_of(dim):
    return {"layers": 1, "width": 64, "ffn": 128, "heads": 16, "kv_heads": 8, "head_dim": dim}


@pytest.mark.parametrize("dim", [4, 6])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_the_smallest_heads(tmp_path, architecture, dim):
    graph, weights, ids, expected = _made(
        tmp_path / "m.gguf", "llama", "f16", LENGTH, **heads_of(dim)
    )
    runner = load(architecture, graph, weights, Limits(LENGTH, 1, CHUNK))
    for step, rows in steps(ids, CUTS):
        assert runner.forward(step).tobytes() == expected[rows].tobytes(), rows


@pytest.mark.parametrize("dim", attending.DEEP_SIZES)
def test_one_row_that_sees_many_tiles(tmp_path, monkeypatch, dim):
    monkeypatch.setattr(attending, "DEEP_TILES", 0)
    sizes = {**heads_of(dim), "kv_heads": 2}
    graph, weights, ids, expected = _made(tmp_path / "m.gguf", "llama", "f16", LENGTH, **sizes)
    runner = load("sm_90a", graph, weights, Limits(LENGTH, 1, CHUNK))
    for step, rows in steps(ids, (17, 1, 1, 5, 1, 14, 1)):
        runner.resume()
        assert runner.forward(step).tobytes() == expected[rows].tobytes(), rows
        is_deep = any(label.startswith(f"decode_deep_{dim}[") for label in runner.labels["KV"])
        assert is_deep == (len(step.tokens) == 1)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_one_row_whose_tiles_are_claimed(tmp_path, monkeypatch, architecture):
    """Six tiles to two sides of one block, in two layers that claim by the same word."""
    monkeypatch.setattr(attending, "DEEP_TILES", 0)
    sizes = {"layers": 2, "width": 64, "ffn": 64, "heads": 2, "kv_heads": 1, "head_dim": 64}
    graph, weights, ids, expected = _made(tmp_path / "m.gguf", "llama", "f16", 645, **sizes)
    card = ShimCard(architecture, processors=1)
    library = shim_library(architecture)
    runner = CudaRunner(card, library, graph, weights, Limits(645, 1, 128))
    for step, rows in steps(ids, (*[128] * 5, 1, 1, 1, 1, 1)):
        assert runner.forward(step).tobytes() == expected[rows].tobytes(), rows
    assert any(label.startswith("decode_deep_64[") for label in runner.labels["KV"])


def test_smaller_heads_are_refused(tmp_path):
    """Their query codes are no two digits that f16 holds: the words would be others."""
    graph, weights, _, _ = _made(tmp_path / "m.gguf", "llama", "f16", 1, **heads_of(2))
    with pytest.raises(
        DeviceError, match=r"heads of 2 elements; the CUDA device takes 4 to 256\. Use .*oracle"
    ):
        load("sm_80", graph, weights, Limits(LENGTH, 1, CHUNK))


def test_any_order_of_threads(made):
    graph, weights, ids, expected = made(("gemma3", "census"))
    for seed in (1, 2):
        runner = load("sm_90a", graph, weights, Limits(LENGTH, 1, CHUNK), seed)
        for step, rows in steps(ids[:22], (17, 3, 1, 1)):
            assert runner.forward(step).tobytes() == expected[rows].tobytes(), rows


def test_more_wanted_rows_than_a_tail_has(made):
    count = HEAD_ROWS + 9
    graph, weights, ids, expected = made(("llama", "q8_0"), count)
    runner = load("sm_90a", graph, weights, Limits(count, 1, count))
    ((step, _),) = steps(ids, (count,))
    assert runner.forward(step).tobytes() == expected.tobytes()
    assert runner.choose(step).tolist() == expected.argmax(axis=1).tolist()


def test_a_step_that_wants_nothing_or_some_rows(made):
    graph, weights, ids, expected = made(("llama", "q8_0"))
    runner = load("sm_90a", graph, weights, Limits(LENGTH, 1, CHUNK))
    for (step, rows), wanted in zip(steps(ids, CUTS), ([], [1, 4], [2], [], [0, 13]), strict=True):
        some = Step(step.tokens, step.positions, step.slots, np.array(wanted, np.int32))
        assert runner.forward(some).tobytes() == expected[rows][wanted].tobytes()
        assert runner.choose(some).tolist() == expected[rows][wanted].argmax(axis=1).tolist()


@pytest.mark.parametrize("model", RINGS, ids="-".join)
def test_rings_go_round_and_rows_are_written_again(made, model):
    """Past the end of a ring, then a rejected draft: rows are appended and written once more."""
    graph, weights, ids, expected = made(model, RINGS_LENGTH)
    runner = load("sm_90a", graph, weights, Limits(RINGS_LENGTH, 1, CHUNK))
    assert any(spec.window == CENSUS_SIZES["window"] for spec in graph.caches)
    wrong = ids.copy()
    wrong[140:] = (ids[140:] + 1) % graph.vocabulary
    first = logits_of(runner, wrong, [CHUNK, CHUNK, 5, 6, 1, 3, 7])
    assert first[:140].tobytes() == expected[:140].tobytes()
    assert first[140:].tobytes() != expected[140:].tobytes()
    right = runner.forward(stretch(ids[140:], 140, 0, range(RINGS_LENGTH - 140)))
    assert right.tobytes() == expected[140:].tobytes()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_rows_of_several_sequences_in_one_step(made, architecture):
    """Three slots at different places, mixed in steps of 2 to 18 rows."""
    graph, weights, ids, expected = made(("muse-glimmer", "census"))
    runner = load(architecture, graph, weights, Limits(LENGTH, 3, CHUNK))
    held = [0, 20, 7]
    for slot, length in enumerate(held):
        if length:
            logits_of(runner, ids[:length], [length], slot)
    for counts in ((1, 1, 1), (3, 0, 4), (9, 2, 7), (0, 1, 1), (2, 6, 0)):
        slots = np.repeat(np.arange(3, dtype=np.int32), counts)
        positions = np.concatenate([held[s] + np.arange(counts[s]) for s in range(3)])
        wanted = np.arange(0, len(slots), 2, dtype=np.int32)
        step = Step(ids[positions], positions.astype(np.int32), slots, wanted)
        assert runner.forward(step).tobytes() == expected[positions[wanted]].tobytes(), counts
        held = [held[s] + counts[s] for s in range(3)]


def test_cached_rows_go_out_and_in(made):
    """What one slot stored, put into another, goes on to the same bytes."""
    graph, weights, ids, expected = made(("gemma3", "census"))
    runner = load("sm_90a", graph, weights, Limits(LENGTH, 2, CHUNK))
    logits_of(runner, ids[:17], [17])
    for layer, _ in enumerate(graph.caches):
        runner.import_rows(layer, 1, 0, *runner.export_rows(layer, 0, 0, 17))
    step = stretch(ids[17:20], 17, 1, range(3))
    assert runner.forward(step).tobytes() == expected[17:20].tobytes()
