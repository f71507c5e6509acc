"""A seed and a prompt say everything: the same ids and logits on every set, thread count, chunk."""

import os

import pytest

import muser
from muser import Sampling
from muser.kernels import Shelf, choose_library, supported_isas
from muser.models.synth import synthesise
from muser.places import libraries

WARM = Sampling(temperature=1.0, top_k=0, top_p=0.98, min_p=0.0, repeat_penalty=1.1, seed=7)


@pytest.fixture(scope="module", params=["llama", "muse-glimmer", "gemma3"])
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "tiny.gguf"
    synthesise(path, architecture=request.param, weights="q8_0", seed=3)
    return path


def answer(path, isa, threads, chunk, sampling):
    before = os.environ.get("MUSER_ISA")
    os.environ["MUSER_ISA"] = isa
    try:
        with muser.load(path, threads=threads, chunk=chunk) as engine:
            return engine.generate(
                "the capital of all things", max_tokens=40, sampling=sampling, hash_logits=True
            )
    finally:
        os.environ.pop("MUSER_ISA")
        if before is not None:
            os.environ["MUSER_ISA"] = before


def test_sampled_text_replays_on_every_instruction_set(path):
    sets = supported_isas(choose_library(Shelf(libraries()), "c"))
    made = {
        (isa, threads, chunk): answer(path, isa, threads, chunk, WARM)
        for isa in sets
        for threads, chunk in ((1, 1), (2, 7), (2, 256))
    }
    first = made["c", 1, 1]
    assert len(set(first.ids)) > 5
    for other in made.values():
        assert (other.ids, other.text) == (first.ids, first.text)
        assert other.logits_sha256 == first.logits_sha256
        assert other.seed == 7
    assert len({tuple(other.libraries.values()) for other in made.values()}) == len(sets)
    cold = answer(path, "c", 1, 256, Sampling())
    assert cold.ids != first.ids


def test_a_record_names_what_was_played_and_nothing_else(path):
    with muser.load(path, threads=2) as engine:
        gate = "gelu_gate" if engine.graph.architecture == "gemma3" else "silu_gate"
        long = engine.generate(range(40), max_tokens=1)
        short = engine.generate([1, 2, 3], max_tokens=2)
    isa = next(iter(short.libraries)).removeprefix("cpu-")

    def buckets(record):
        labels = [label for kind in record.labels.values() for label in kind]
        assert all(f"isa={isa}" in label for label in labels)
        return {part.split("bucket=")[1].rstrip("]") for part in labels if "bucket=" in part}

    assert buckets(long) == {"chunk"}
    assert buckets(short) == {"1", "4"}
    assert short.labels["KV"] == (f"kv_append[isa={isa}]", f"attention[isa={isa}]")
    assert f"{gate}[isa={isa}]" in short.labels["rows"]
    assert f"add_norm_quantise_32[isa={isa},bucket=1]" in short.labels["F32"]
    assert short.labels["Q8_0"]
