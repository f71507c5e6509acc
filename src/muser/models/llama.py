"""`llama`: Llama 2 and 3, SmolLM and their kin, dense, without biases."""

from collections.abc import Container, Mapping

from muser.graph import (
    Activation,
    Add,
    Attention,
    CacheSpec,
    Embed,
    GatedAct,
    Graph,
    KvAppend,
    Op,
    Pairing,
    Project,
    RmsNorm,
    Rope,
    RopeSpec,
    TakeRows,
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

ARCHITECTURE = "llama"


def build(metadata: Mapping[str, object], tensors: Container[str]) -> Graph:
    """The graph of a file; `tensors` tells whether head and rotation factors are stored."""
    keys = Keys(metadata, ARCHITECTURE)
    size = read_dimensions(keys)
    refuse_rope_scaling(keys)
    refuse_experts(keys)
    factors = "rope_freqs.weight" if "rope_freqs.weight" in tensors else None
    head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    rotation = RopeSpec(
        rotated=read_rotated(keys, size.head_dim),
        base=read_base(keys, "rope.freq_base", 10000.0),
        pairing=Pairing.INTERLEAVED,
        factors=factors,
    )
    ops: list[Op] = [Embed("stream", "token_embd.weight", "embd")]
    for layer in range(size.layers):
        ops += _layer(layer, size)
    ops += [
        RmsNorm("stream", "normed", "output_norm.weight", size.eps, "result_norm"),
        Project("normed", ("logits",), (head,), ("result_output",)),
    ]
    return Graph(
        architecture=ARCHITECTURE,
        ops=tuple(ops),
        rows=_rows(size),
        weights=_weights(size, head, factors, rotation),
        caches=(CacheSpec(size.kv_heads, size.head_dim, None),) * size.layers,
        ropes={"rope": rotation},
        vocabulary=size.vocabulary,
        context=size.context,
    )


def _layer(i: int, size: Dimensions) -> list[Op]:
    def w(name: str) -> str:
        return f"blk.{i}.{name}.weight"

    scale = size.head_dim**-0.5
    qkv_nodes = (f"Qcur-{i}", f"Kcur-{i}", f"Vcur-{i}")
    ops: list[Op] = [
        RmsNorm("stream", "normed", w("attn_norm"), size.eps, f"attn_norm-{i}"),
        Project("normed", ("q", "k", "v"), (w("attn_q"), w("attn_k"), w("attn_v")), qkv_nodes),
        Rope("q", "q", size.heads, size.head_dim, "rope", f"Qcur_rope-{i}"),
        Rope("k", "k", size.kv_heads, size.head_dim, "rope", f"Kcur_rope-{i}"),
        KvAppend("k", "v", i, f"kv-{i}"),
        Attention("q", "mixed", i, size.heads, scale, f"kqv_out-{i}"),
        Project("mixed", ("branch",), (w("attn_output"),), (f"attn_out-{i}",)),
    ]
    if i == size.layers - 1:
        ops.append(TakeRows(("branch", "stream"), "out_ids"))
    ops += [
        Add("branch", "stream", "stream", f"ffn_inp-{i}"),
        RmsNorm("stream", "normed", w("ffn_norm"), size.eps, f"ffn_norm-{i}"),
        Project(
            "normed",
            ("gate", "up"),
            (w("ffn_gate"), w("ffn_up")),
            (f"ffn_gate-{i}", f"ffn_up-{i}"),
        ),
        GatedAct("gate", "up", "gate", Activation.SILU, f"ffn_swiglu-{i}"),
        Project("gate", ("branch",), (w("ffn_down"),), (f"ffn_out-{i}",)),
        Add("branch", "stream", "stream", f"l_out-{i}"),
    ]
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


def _weights(
    size: Dimensions, head: str, factors: str | None, rotation: RopeSpec
) -> dict[str, tuple[int, ...]]:
    table: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (size.width, size.vocabulary),
        head: (size.width, size.vocabulary),
        "output_norm.weight": (size.width,),
    }
    if factors is not None:
        table[factors] = (rotation.rotated // 2,)
    for i in range(size.layers):
        table |= {
            f"blk.{i}.attn_norm.weight": (size.width,),
            f"blk.{i}.attn_q.weight": (size.width, size.query_width),
            f"blk.{i}.attn_k.weight": (size.width, size.kv_width),
            f"blk.{i}.attn_v.weight": (size.width, size.kv_width),
            f"blk.{i}.attn_output.weight": (size.query_width, size.width),
            f"blk.{i}.ffn_norm.weight": (size.width,),
            f"blk.{i}.ffn_gate.weight": (size.width, size.ffn),
            f"blk.{i}.ffn_up.weight": (size.width, size.ffn),
            f"blk.{i}.ffn_down.weight": (size.ffn, size.width),
        }
    return table
