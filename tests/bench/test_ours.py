"""Muser as a side, on a tiny model: the same ids and bits along every way of feeding them."""

import pytest

from muser.bench.ours import MuserSide
from muser.errors import DeviceError
from muser.models.synth import synthesise


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synthesise(path, architecture="llama", seed=3)
    return path


@pytest.fixture(scope="module")
def side():
    with MuserSide() as side:
        yield side


def test_fed_and_greedy_runs_are_the_same_bits(side, model):
    loading = side.load(model, threads=1, context=64)
    assert loading.ns > 0
    prompt = [5, 9, 2, 7]
    ids, digest = side.greedy(prompt, 6)
    fed = [prompt[-1], *ids[:-1]]
    sample = side.decode([prompt[:-1]], [fed], margins=True)
    assert sample.ids == ids
    assert sample.logits_sha256 == (digest,)
    assert sample.ns > 0
    assert sample.margins is not None
    assert all(margin >= 0 for margin in sample.margins)
    whole = side.prefill([*prompt[:-1], *fed])
    assert whole.ids == ids[-1:]
    assert whole.logits_sha256 == (digest,)
    assert side.decode([[]], [[*prompt[:-1], *fed]]).logits_sha256 == (digest,)


def test_slots_side_by_side_are_the_same_bits(side, model):
    prompts = ([5, 9, 2], [1, 1], [])
    side.load(model, threads=1, context=64)
    alone = [side.greedy([*prompt, 8], 5) for prompt in prompts]
    side.load(model, threads=1, context=64, slots=3)
    fed = [[8, *ids[:-1]] for ids, _ in alone]
    together = side.decode(prompts, fed)
    assert together.ids == tuple(token for ids, _ in alone for token in ids)
    assert together.logits_sha256 == tuple(digest for _, digest in alone)
    assert side.decode(prompts, fed).logits_sha256 == together.logits_sha256


def test_more_slots_than_positions(side, model):
    side.load(model, threads=1, context=2, slots=5)
    each = side.decode([[]] * 5, [[7]] * 5)
    assert len(each.ids) == 5
    assert len(set(each.logits_sha256)) == 1


def test_identity_names_what_was_loaded(side, model):
    side.load(model, threads=1, context=64)
    side.prefill([1, 2, 3])
    identity = side.identity()
    assert identity["engine"] == "muser"
    assert len(identity["build"]["kernel_texts_sha256"]) == 64
    [library] = identity["libraries"]
    assert identity["instruction_sets"] == [library]
    assert "KV" in identity["labels"]
    assert identity["settings"]["threads"] == 1


def test_a_bad_model_is_refused(side, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(DeviceError, match="muser: "):
        side.load(path, threads=1, context=64)
