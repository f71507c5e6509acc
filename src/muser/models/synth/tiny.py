"""Small files of every architecture and weight type: what all devices are compared on."""

from pathlib import Path

from muser.models.synth.synthesis import plan_synthesis

TINY = (
    *(("llama", kind) for kind in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "f16", "bf16", "f32")),
    ("muse-glimmer", "census"),  # Q4_K, Q5_K and Q6_K
    ("muse-glimmer", "f32"),
    ("gemma3", "census"),  # Q8_0, Q5_0, Q4_K and Q6_K in one file, one KV head of 256
    ("gemma3", "f32"),
)
"""Architectures, and kinds of weights as `synthesise` names them."""
CENSUS_SIZES = {
    "layers": 8, "width": 256, "ffn": 768, "heads": 16, "kv_heads": 2, "head_dim": 32,
    "vocabulary": 320, "window": 8, "context": 1024,
}  # fmt: skip
"""A model whose every tensor has the type that it has in a large one."""
SEED = 11


def make_tiny(path: Path, architecture: str, kind: str, **sizes: int) -> None:
    """Write the file of an architecture and kind of weights; `sizes` go before its own."""
    own = dict(CENSUS_SIZES) if kind == "census" else {}
    if own and architecture == "gemma3":
        own |= {"layers": 7, "heads": 4, "kv_heads": 1, "head_dim": 256}
    plan_synthesis(architecture=architecture, weights=kind, seed=SEED, **own | sizes).write(path)
