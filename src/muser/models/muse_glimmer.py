"""`muse-glimmer`: three layers with a window and rotation, then one without either; gated."""

from collections.abc import Container, Mapping

from muser.graph import (
    Activation,
    Add,
    Attention,
    CacheSpec,
    Embed,
    GatedAct,
    Graph,
    HeadNorm,
    KvAppend,
    Op,
    Pairing,
    Project,
    RmsNorm,
    Rope,
    RopeSpec,
    Scale,
    SigmoidGate,
    Softcap,
    TakeRows,
    UniformSpec,
)
from muser.models.hparams import (
    Dimensions,
    Keys,
    read_base,
    read_dimensions,
    read_rotated,
    refuse_experts,
    refuse_rope_scaling,
)

ARCHITECTURE = "muse-glimmer"
POST_NORM_EPS = 1e-8  # the two post norms; a constant of the architecture, not in the file
DEFAULT_SOFTCAP = 30.0  # llama.cpp's own default where the key is absent


def build(metadata: Mapping[str, object], tensors: Container[str]) -> Graph:
    """The graph of a file; `tensors` is not consulted: every tensor is required."""
    keys = Keys(metadata, ARCHITECTURE)
    size = read_dimensions(keys)
    refuse_rope_scaling(keys)
    refuse_experts(keys)
    window = keys.integer("attention.sliding_window", most=1 << 24)
    slides = keys.sliding_layers(size.layers)
    base = read_base(keys, "rope.freq_base", 10000.0)
    rotation = RopeSpec(
        rotated=read_rotated(keys, size.head_dim),
        base=read_base(keys, "rope.freq_base_swa", base),
        pairing=Pairing.INTERLEAVED,
    )
    ops: list[Op] = [
        Embed("stream", "token_embd.weight", "embd"),
        RmsNorm("stream", "stream", None, size.eps, "embd_norm"),
    ]
    for layer in range(size.layers):
        ops += _attention_half(layer, size, slides[layer])
        ops += _ffn_half(layer, size)
    ops += _head(keys, size)
    return Graph(
        architecture=ARCHITECTURE,
        ops=tuple(ops),
        rows=_rows(size),
        weights=_weights(size),
        caches=tuple(
            CacheSpec(size.kv_heads, size.head_dim, window if sliding else None)
            for sliding in slides
        ),
        ropes={"window": rotation},
        vocabulary=size.vocabulary,
        context=size.context,
        uniform=_uniform(size),
    )


def _attention_half(i: int, size: Dimensions, sliding: bool) -> list[Op]:
    def w(name: str) -> str:
        return f"blk.{i}.{name}.weight"

    heads, kv, dim = size.heads, size.kv_heads, size.head_dim
    ops: list[Op] = [
        RmsNorm("stream", "normed", w("attn_norm"), size.eps, f"attn_norm-{i}"),
        Project(
            "normed",
            ("q", "k", "v", "attn_gate"),
            (w("attn_q"), w("attn_k"), w("attn_v"), w("attn_gate")),
            (f"Qcur-{i}", f"Kcur-{i}", f"Vcur-{i}", f"attn_gate_proj-{i}"),
        ),
        HeadNorm("q", "q", w("attn_q_norm"), heads, dim, size.eps, f"Qcur_normed-{i}"),
        HeadNorm("k", "k", w("attn_k_norm"), kv, dim, size.eps, f"Kcur_normed-{i}"),
    ]
    if sliding:
        ops += [
            Rope("q", "q", heads, dim, "window", f"Qcur_rope-{i}"),
            Rope("k", "k", kv, dim, "window", f"Kcur_rope-{i}"),
        ]
    ops += [
        KvAppend("k", "v", i, f"kv-{i}"),
        Attention("q", "mixed", i, heads, dim**-0.5, f"attn_out-{i}"),
        SigmoidGate("mixed", "attn_gate", "mixed", f"attn_gated-{i}"),
        Project("mixed", ("branch",), (w("attn_output"),), (f"attn_o_proj-{i}",)),
        RmsNorm("branch", "branch", w("post_attention_norm"), POST_NORM_EPS, f"attn_post_norm-{i}"),
    ]
    if i == size.layers - 1:
        ops.append(TakeRows(("branch", "stream"), "out_ids"))
    ops.append(Add("branch", "stream", "stream", f"ffn_inp-{i}"))
    return ops


def _ffn_half(i: int, size: Dimensions) -> list[Op]:
    def w(name: str) -> str:
        return f"blk.{i}.{name}.weight"

    nodes = (f"ffn_gate-{i}", f"ffn_up-{i}")
    return [
        RmsNorm("stream", "normed", w("ffn_norm"), size.eps, f"ffn_norm-{i}"),
        Project("normed", ("gate", "up"), (w("ffn_gate"), w("ffn_up")), nodes),
        GatedAct("gate", "up", "gate", Activation.SILU, f"ffn_swiglu-{i}"),
        Project("gate", ("branch",), (w("ffn_down"),), (f"ffn_out-{i}",)),
        RmsNorm("branch", "branch", w("post_ffw_norm"), POST_NORM_EPS, f"ffn_post_norm-{i}"),
        Add("branch", "stream", "stream", f"l_out-{i}"),
    ]


def _head(keys: Keys, size: Dimensions) -> list[Op]:
    """Scale strictly before the cap: they do not commute. A cap of 0 means none."""
    ops: list[Op] = [
        RmsNorm("stream", "normed", "output_norm.weight", size.eps, "result_norm"),
        Project("normed", ("logits",), ("output.weight",), ("result_output",)),
        Scale("logits", "logits", keys.number("logit_scale"), "result_scaled"),
    ]
    cap = keys.get("final_logit_softcapping")
    if not (isinstance(cap, int | float) and cap == 0):
        cap = keys.number("final_logit_softcapping", DEFAULT_SOFTCAP)
        ops.append(Softcap("logits", "logits", cap, "result_capped"))
    return ops


def _rows(size: Dimensions) -> dict[str, int]:
    return {
        "stream": size.width,
        "normed": size.width,
        "q": size.query_width,
        "k": size.kv_width,
        "v": size.kv_width,
        "attn_gate": size.query_width,
        "mixed": size.query_width,
        "branch": size.width,
        "gate": size.ffn,
        "up": size.ffn,
        "logits": size.vocabulary,
    }


def _weights(size: Dimensions) -> dict[str, tuple[int, ...]]:
    table: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (size.width, size.vocabulary),
        "output.weight": (size.width, size.vocabulary),
        "output_norm.weight": (size.width,),
    }
    for i in range(size.layers):
        table |= {
            f"blk.{i}.attn_norm.weight": (size.width,),
            f"blk.{i}.attn_q.weight": (size.width, size.query_width),
            f"blk.{i}.attn_k.weight": (size.width, size.kv_width),
            f"blk.{i}.attn_v.weight": (size.width, size.kv_width),
            f"blk.{i}.attn_q_norm.weight": (size.head_dim,),
            f"blk.{i}.attn_k_norm.weight": (size.head_dim,),
            f"blk.{i}.attn_gate.weight": (size.width, size.query_width),
            f"blk.{i}.attn_output.weight": (size.query_width, size.width),
            f"blk.{i}.post_attention_norm.weight": (size.width,),
            f"blk.{i}.ffn_norm.weight": (size.width,),
            f"blk.{i}.ffn_gate.weight": (size.width, size.ffn),
            f"blk.{i}.ffn_up.weight": (size.width, size.ffn),
            f"blk.{i}.ffn_down.weight": (size.ffn, size.width),
            f"blk.{i}.post_ffw_norm.weight": (size.width,),
        }
    return table


def _uniform(size: Dimensions) -> tuple[UniformSpec, ...]:
    """QK norms are constants here; a learned one is another model."""
    names = [f"blk.{i}.attn_{{}}_norm.weight" for i in range(size.layers)]
    return (
        UniformSpec(tuple(name.format("q") for name in names), None, "a learned QK-norm"),
        UniformSpec(tuple(name.format("k") for name in names), 1.0, "a learned QK-norm"),
    )
