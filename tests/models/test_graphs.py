"""Graphs from metadata: shapes, order, and refusals instead of wrong graphs."""

import numpy as np
import pytest

from muser.errors import ModelError
from muser.graph import (
    Activation,
    Attention,
    CacheSpec,
    GatedAct,
    Pairing,
    Project,
    RmsNorm,
    Rope,
    Scale,
    Softcap,
)
from muser.models import build

LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 100,
}
MUSE = {
    "general.architecture": "muse-glimmer",
    "muse-glimmer.block_count": 8,
    "muse-glimmer.context_length": 256,
    "muse-glimmer.embedding_length": 64,
    "muse-glimmer.feed_forward_length": 192,
    "muse-glimmer.attention.head_count": 4,
    "muse-glimmer.attention.head_count_kv": 2,
    "muse-glimmer.attention.key_length": 32,
    "muse-glimmer.attention.value_length": 32,
    "muse-glimmer.attention.layer_norm_rms_epsilon": 1e-5,
    "muse-glimmer.attention.sliding_window": 8,
    "muse-glimmer.attention.sliding_window_pattern": 4,
    "muse-glimmer.rope.freq_base": 500000.0,
    "muse-glimmer.logit_scale": 0.25,
    "muse-glimmer.final_logit_softcapping": 20.0,
    "muse-glimmer.vocab_size": 100,
}
GEMMA = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 13,
    "gemma3.context_length": 256,
    "gemma3.embedding_length": 96,
    "gemma3.feed_forward_length": 192,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 32,
    "gemma3.attention.value_length": 32,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.attention.sliding_window": 8,
    "gemma3.rope.freq_base": 1000000.0,
    "gemma3.vocab_size": 100,
}
PAIR = np.array([1, 2], np.int32)


def without(metadata, key):
    return {name: value for name, value in metadata.items() if not name.endswith(key)}


def ops_of(graph, kind):
    return [op for op in graph.ops if isinstance(op, kind)]


def written(op):
    names = getattr(op, "targets", None) or (getattr(op, "target", None),)
    return [name for name in names if name]


@pytest.mark.parametrize("metadata", [LLAMA, MUSE, GEMMA], ids=["llama", "muse-glimmer", "gemma3"])
def test_every_row_is_written_before_it_is_read(metadata):
    graph = build(metadata)
    seen: set[str] = set()
    for op in graph.ops:
        for field in ("source", "gate", "up", "left", "right", "query", "key", "value"):
            name = getattr(op, field, None)
            assert name is None or name in seen, (op, name)
        seen.update(written(op))
    assert seen == set(graph.rows)


@pytest.mark.parametrize("metadata", [LLAMA, MUSE, GEMMA], ids=["llama", "muse-glimmer", "gemma3"])
def test_projections_fit_their_rows(metadata):
    graph = build(metadata)
    used = set()
    for op in ops_of(graph, Project):
        for target, weight in zip(op.targets, op.weights, strict=True):
            assert graph.weights[weight] == (graph.rows[op.source], graph.rows[target])
            used.add(weight)
    assert {name for name, shape in graph.weights.items() if len(shape) == 2} - used <= {
        "token_embd.weight"
    }


def test_llama_defaults_and_ties():
    graph = build(LLAMA, ["token_embd.weight"])
    assert graph.caches == (CacheSpec(2, 8, None),) * 2
    assert graph.ropes["rope"].base == 10000.0
    assert graph.ropes["rope"].pairing is Pairing.INTERLEAVED
    assert ops_of(graph, Project)[-1].weights == ("token_embd.weight",)
    assert "output.weight" not in graph.weights
    assert ops_of(graph, Attention)[0].scale == 8**-0.5


def test_llama_reads_rotation_factors_when_the_file_has_them():
    graph = build(LLAMA, ["rope_freqs.weight", "output.weight"])
    assert graph.ropes["rope"].factors == "rope_freqs.weight"
    assert graph.weights["rope_freqs.weight"] == (4,)


def test_muse_windows_rotate_and_full_layers_do_not():
    graph = build(MUSE)
    assert [cache.window for cache in graph.caches] == [8, 8, 8, None] * 2
    assert [op.node for op in ops_of(graph, Rope)][::2] == [
        f"Qcur_rope-{i}" for i in (0, 1, 2, 4, 5, 6)
    ]
    eps = {op.node: op.eps for op in ops_of(graph, RmsNorm)}
    assert eps["attn_post_norm-3"] == eps["ffn_post_norm-3"] == 1e-8
    assert eps["attn_norm-3"] == eps["embd_norm"] == eps["result_norm"] == 1e-5


def test_muse_scales_before_it_caps():
    graph = build(MUSE)
    assert [type(op) for op in graph.ops[-2:]] == [Scale, Softcap]
    assert ops_of(build(MUSE | {"muse-glimmer.final_logit_softcapping": 0.0}), Softcap) == []


def test_muse_pattern_as_a_list():
    pattern = np.array([True, False] * 4)
    graph = build(MUSE | {"muse-glimmer.attention.sliding_window_pattern": pattern})
    assert [cache.window for cache in graph.caches] == [8, None] * 4


def test_muse_window_base_wins():
    graph = build(MUSE | {"muse-glimmer.rope.freq_base_swa": 1234.0})
    assert graph.ropes["window"].base == 1234.0


def gemma(**keys):
    return GEMMA | {f"gemma3.{key.replace('__', '.')}": value for key, value in keys.items()}


def test_gemma_rotates_every_layer_with_one_of_two_bases():
    graph = build(GEMMA)
    windows = [8, 8, 8, 8, 8, None]
    assert [cache.window for cache in graph.caches] == [*windows, *windows, 8]
    tables = [op.table for op in ops_of(graph, Rope)]
    assert tables == [
        name for w in [*windows, *windows, 8] for name in ["window" if w else "full"] * 2
    ]
    assert (graph.ropes["window"].base, graph.ropes["full"].base) == (10000.0, 1000000.0)
    assert {spec.pairing for spec in graph.ropes.values()} == {Pairing.HALF_SPLIT}
    assert build(gemma(rope__freq_base_swa=77.0)).ropes["window"].base == 77.0


def test_gemma_scales_the_embedding_and_the_full_layers_angles():
    graph = build(gemma(rope__scaling__type="linear", rope__scaling__factor=8.0))
    assert graph.ops[1] == Scale("stream", "stream", float(np.float32(96**0.5)), "inp_scaled")
    assert (graph.ropes["window"].scale, graph.ropes["full"].scale) == (1.0, 0.125)
    assert build(gemma(rope__scale_linear=3.0)).ropes["full"].scale == float(np.float32(1 / 3))
    assert build(gemma(rope__scaling__type="none", rope__scaling__factor=8.0)) == build(GEMMA)
    assert build(gemma(rope__scaling__factor=0.0)) == build(GEMMA)


def test_gemma_without_a_window_and_with_another_pattern():
    for none in (
        build(without(GEMMA, "sliding_window")),
        build(gemma(attention__sliding_window=0)),
    ):
        assert {cache.window for cache in none.caches} == {None}
        assert set(none.ropes) == {"full"}
    every = build(gemma(attention__sliding_window_pattern=0))
    assert {cache.window for cache in every.caches} == {8}
    assert set(every.ropes) == {"window"}
    third = build(gemma(attention__sliding_window_pattern=3))
    assert [cache.window for cache in third.caches][:4] == [8, 8, None, 8]


def test_gemma_scales_its_scores_by_the_head_but_for_the_largest_model():
    assert {op.scale for op in ops_of(build(GEMMA), Attention)} == {32**-0.5}
    assert {op.scale for op in ops_of(build(gemma(block_count=62)), Attention)} == {24**-0.5}


def test_gemma_head_cap_and_activation():
    graph = build(GEMMA, ["token_embd.weight"])
    assert ops_of(graph, Project)[-1].weights == ("token_embd.weight",)
    assert (
        ops_of(graph, Softcap) == ops_of(build(gemma(final_logit_softcapping=0.0)), Softcap) == []
    )
    assert ops_of(build(gemma(final_logit_softcapping=30.0)), Softcap)[0].cap == 30.0
    assert ops_of(build(GEMMA), Project)[-1].weights == ("output.weight",)
    assert {op.activation for op in ops_of(graph, GatedAct)} == {Activation.GELU}
    assert {op.eps for op in ops_of(graph, RmsNorm)} == {1e-6}


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        (LLAMA | {"general.architecture": "mamba"}, "'mamba' is not supported"),
        (without(LLAMA, "general.architecture"), "None is not supported"),
        (without(LLAMA, "block_count"), "llama.block_count is missing"),
        (LLAMA | {"llama.block_count": -3}, "llama.block_count is -3"),
        (LLAMA | {"llama.block_count": True}, "llama.block_count is True"),
        (LLAMA | {"llama.block_count": 10**9}, "llama.block_count is 1000000000"),
        (LLAMA | {"llama.embedding_length": "big"}, "llama.embedding_length is 'big'"),
        (LLAMA | {"llama.attention.head_count_kv": 3}, "4 query heads over 3 KV heads"),
        (LLAMA | {"llama.rope.scaling.type": "yarn"}, "'yarn'"),
        (LLAMA | {"llama.rope.scale_linear": 4.0}, "'linear'"),
        (LLAMA | {"llama.expert_count": 8}, "mixtures of experts"),
        (LLAMA | {"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan"),
        (without(MUSE, "sliding_window_pattern"), "which layers have a window is not known"),
        (
            MUSE | {"muse-glimmer.attention.sliding_window_pattern": np.array([True] * 3)},
            "which layers have a window is not known",
        ),
        (gemma(rope__scaling__type="yarn"), "'yarn'"),
        (gemma(rope__scaling__factor=0.5), "'linear' (factor 0.5)"),
        (gemma(rope__scaling__factor=float("nan")), "'linear' (factor nan)"),
        (gemma(rope__scaling__factor=1e300), "'linear' (factor 1e+300)"),
        (gemma(rope__scaling__factor=True), "'linear' (factor True)"),
        (gemma(rope__scaling__factor=PAIR), "'linear' (factor array"),
        (gemma(attention__sliding_window=-1), "sliding_window is -1"),
        (gemma(attention__sliding_window=False), "sliding_window is False"),
        (gemma(attention__sliding_window_pattern="x"), "which layers have a window"),
        (gemma(final_logit_softcapping="x"), "softcapping is 'x'"),
        (without(MUSE, "sliding_window"), "sliding_window is missing"),
        (without(MUSE, "logit_scale"), "logit_scale is missing"),
        (MUSE | {"muse-glimmer.rope.scaling.type": "longrope"}, "'longrope'"),
        (LLAMA | {"llama.rope.dimension_count": 7}, "rope.dimension_count is 7"),
        (LLAMA | {"llama.rope.freq_base": 0.5}, "rope.freq_base is 0.5"),
        (MUSE | {"muse-glimmer.rope.freq_base_swa": 1e-30}, "rope.freq_base_swa is 1e-30"),
        (LLAMA | {"llama.attention.layer_norm_rms_epsilon": 1e-300}, "epsilon is 1e-300"),
        (MUSE | {"muse-glimmer.final_logit_softcapping": 1e-300}, "softcapping is 1e-300"),
        (MUSE | {"muse-glimmer.final_logit_softcapping": PAIR}, "softcapping is array"),
        (MUSE | {"muse-glimmer.logit_scale": 1e300}, "logit_scale is 1e+300"),
        (LLAMA | {"llama.rope.scaling.factor": PAIR}, "'linear' (factor array"),
        (LLAMA | {"llama.rope.scaling.type": PAIR}, "rope.scaling.type is array"),
        (LLAMA | {"llama.expert_count": PAIR}, "llama.expert_count is array"),
        (
            MUSE | {"muse-glimmer.attention.sliding_window_pattern": np.array([2, 1] * 4)},
            "which layers have a window is not known",
        ),
        (
            MUSE | {"muse-glimmer.attention.sliding_window_pattern": (PAIR,) * 8},
            "which layers have a window is not known",
        ),
    ],
)
def test_refusals_are_one_line_with_a_remedy(metadata, word):
    with pytest.raises(ModelError) as caught:
        build(metadata)
    assert word in caught.value.sentence
    assert "\n" not in str(caught.value)
    assert caught.value.remedy.endswith(".")
