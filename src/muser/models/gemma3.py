"""`gemma3`: five layers with a window, then one without, each kind with a rotation of its own."""

from collections.abc import Container, Mapping

import numpy as np

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
    Softcap,
    TakeRows,
)
from muser.models.hparams import (
    Dimensions,
    Keys,
    read_base,
    read_dimensions,
    read_linear_scale,
    read_rotated,
    refuse_experts,
)

ARCHITECTURE = "gemma3"
PERIOD = 6  # the pattern where the file has no key for it
WINDOW_BASE = 10000.0  # the same for the base of the layers with a window
LAYERS_27B = 62  # the one size whose queries are scaled by width / heads, not by head_dim


def build(metadata: Mapping[str, object], tensors: Container[str]) -> Graph:
    """The graph of a file; `tensors` tells whether the head is stored beside the embedding."""
    keys = Keys(metadata, ARCHITECTURE)
    size = read_dimensions(keys)
    refuse_experts(keys)
    window = _read_window(keys)
    slides = (False,) * size.layers if window is None else keys.sliding_layers(size.layers, PERIOD)
    head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    ops: list[Op] = [
        Embed("stream", "token_embd.weight", "embd"),
        Scale("stream", "stream", float(np.sqrt(np.float32(size.width))), "inp_scaled"),
    ]
    for layer in range(size.layers):
        ops += _attention_half(layer, size, slides[layer])
        ops += _ffn_half(layer, size)
    ops += _head(keys, size, head)
    ropes = _ropes(keys, size)
    return Graph(
        architecture=ARCHITECTURE,
        ops=tuple(ops),
        rows=_rows(size),
        weights=_weights(size, head),
        caches=tuple(
            CacheSpec(size.kv_heads, size.head_dim, window if sliding else None)
            for sliding in slides
        ),
        ropes={name: ropes[name] for name in ropes if (name == "window") in slides},
        vocabulary=size.vocabulary,
        context=size.context,
    )


def _read_window(keys: Keys) -> int | None:
    """Positions that a sliding layer sees; 0, or no key at all, is a model without a window."""
    window = keys.get("attention.sliding_window")
    if window is None or (isinstance(window, int) and not isinstance(window, bool) and not window):
        return None
    return keys.integer("attention.sliding_window", most=1 << 24)


def _ropes(keys: Keys, size: Dimensions) -> dict[str, RopeSpec]:
    """Only layers without a window take the file's base and its linear scaling."""
    rotated = read_rotated(keys, size.head_dim)
    base = read_base(keys, "rope.freq_base", 10000.0)
    near = read_base(keys, "rope.freq_base_swa", WINDOW_BASE)
    return {
        "window": RopeSpec(rotated, near, Pairing.HALF_SPLIT),
        "full": RopeSpec(rotated, base, Pairing.HALF_SPLIT, scale=read_linear_scale(keys)),
    }


def _attention_half(i: int, size: Dimensions, sliding: bool) -> list[Op]:
    def w(name: str) -> str:
        return f"blk.{i}.{name}.weight"

    heads, kv, dim = size.heads, size.kv_heads, size.head_dim
    table = "window" if sliding else "full"
    scale = (size.width // heads if size.layers == LAYERS_27B else dim) ** -0.5
    qkv_nodes = (f"Qcur-{i}", f"Kcur-{i}", f"Vcur-{i}")
    ops: list[Op] = [
        RmsNorm("stream", "normed", w("attn_norm"), size.eps, f"attn_norm-{i}"),
        Project("normed", ("q", "k", "v"), (w("attn_q"), w("attn_k"), w("attn_v")), qkv_nodes),
        HeadNorm("q", "q", w("attn_q_norm"), heads, dim, size.eps, f"Qcur_normed-{i}"),
        HeadNorm("k", "k", w("attn_k_norm"), kv, dim, size.eps, f"Kcur_normed-{i}"),
        Rope("q", "q", heads, dim, table, f"Qcur_rope-{i}"),
        Rope("k", "k", kv, dim, table, f"Kcur_rope-{i}"),
        KvAppend("k", "v", i, f"kv-{i}"),
        Attention("q", "mixed", i, heads, scale, f"kqv_out-{i}"),
        Project("mixed", ("branch",), (w("attn_output"),), (f"attn_out-{i}",)),
    ]
    if i == size.layers - 1:
        ops.append(TakeRows(("branch", "stream"), "out_ids"))
    ops += [
        RmsNorm("branch", "branch", w("post_attention_norm"), size.eps, f"attn_post_norm-{i}"),
        Add("branch", "stream", "stream", f"sa_out-{i}"),
    ]
    return ops


def _ffn_half(i: int, size: Dimensions) -> list[Op]:
    def w(name: str) -> str:
        return f"blk.{i}.{name}.weight"

    nodes = (f"ffn_gate-{i}", f"ffn_up-{i}")
    return [
        RmsNorm("stream", "normed", w("ffn_norm"), size.eps, f"ffn_norm-{i}"),
        Project("normed", ("gate", "up"), (w("ffn_gate"), w("ffn_up")), nodes),
        GatedAct("gate", "up", "gate", Activation.GELU, f"ffn_geglu-{i}"),
        Project("gate", ("branch",), (w("ffn_down"),), (f"ffn_out-{i}",)),
        RmsNorm("branch", "branch", w("post_ffw_norm"), size.eps, f"ffn_post_norm-{i}"),
        Add("branch", "stream", "stream", f"l_out-{i}"),
    ]


def _head(keys: Keys, size: Dimensions, head: str) -> list[Op]:
    """Released files have no cap; a cap of 0 means none too."""
    ops: list[Op] = [
        RmsNorm("stream", "normed", "output_norm.weight", size.eps, "result_norm"),
        Project("normed", ("logits",), (head,), ("result_output",)),
    ]
    cap = keys.get("final_logit_softcapping")
    if cap is not None and not (isinstance(cap, int | float) and cap == 0):
        cap = keys.number("final_logit_softcapping")
        ops.append(Softcap("logits", "logits", cap, "result_capped"))
    return ops


def _rows(size: Dimensions) -> dict[str, int]:
    return {
        "stream": size.width,
        "normed": size.width,
        "q": size.query_width,
        "k": size.kv_width,
        "v": size.kv_width,
        "mixed": size.query_width,
        "branch": size.width,
        "gate": size.ffn,
        "up": size.ffn,
        "logits": size.vocabulary,
    }


def _weights(size: Dimensions, head: str) -> dict[str, tuple[int, ...]]:
    """Norm weights of a GGUF file include the 1 that the authors add when they run."""
    table: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (size.width, size.vocabulary),
        head: (size.width, size.vocabulary),
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
            f"blk.{i}.attn_output.weight": (size.query_width, size.width),
            f"blk.{i}.post_attention_norm.weight": (size.width,),
            f"blk.{i}.ffn_norm.weight": (size.width,),
            f"blk.{i}.ffn_gate.weight": (size.width, size.ffn),
            f"blk.{i}.ffn_up.weight": (size.width, size.ffn),
            f"blk.{i}.ffn_down.weight": (size.ffn, size.width),
            f"blk.{i}.post_ffw_norm.weight": (size.width,),
        }
    return table
