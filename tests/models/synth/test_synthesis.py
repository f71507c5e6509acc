from collections import Counter
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from muser.errors import LimitError, ModelError, UsageError
from muser.formats import BlockType, GgufFile, PackedTensor, dequantise, write_gguf
from muser.graph.interpreter import Interpreter
from muser.models import build
from muser.models.synth import plan_synthesis, synthesise
from muser.models.synth.shape import WEIGHTS

ARCHITECTURES = ("llama", "muse-glimmer", "gemma3")
TINY = {"layers": 4, "width": 256, "ffn": 768, "heads": 8, "head_dim": 32, "vocabulary": 320}

# SHA-256 of whole files: the same on every machine, Python and NumPy.
GOLDENS = {
    ("llama", "q8_0"): "d855feeffd14443b7dfa32dfb4abf46ad80799e319365f73d583ce4e6c1beae7",
    ("muse-glimmer", "q8_0"): "2033821ae6a83566bcf45095642c61e6b6a69d78ec7f7255e285d742440019bf",
    ("gemma3", "q8_0"): "3251256d9c6ff1d895a0d1fe00528876220c9c098d73283860f57ebd6b3b8266",
    ("gemma3", "census"): "003cc8dd7a7a2ac3d170bfbd5068c311c578e09fa84f211e4c7375f1d2469bce",
    ("llama", "f32"): "0d9566dcb5614f98be219878fb8f5956fe4acc12512e7f375257815dd7de6185",
    ("muse-glimmer", "q6_k"): "09a5ad9b5dcf369c21d7410b4cbfd3558020dccb618e9db6961f864f859b277a",
    ("muse-glimmer", "census"): "4a887a0ba62d4c7b25d09251de9d96ce80f5295e8deff8224cc65bfd73304ede",
}


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(("architecture", "weights"), GOLDENS)
def test_the_same_bytes_everywhere(tmp_path: Path, architecture: str, weights: str) -> None:
    sizes = TINY if weights == "census" else {}
    path = tmp_path / "f.gguf"
    synthesise(path, architecture=architecture, weights=weights, seed=1, **sizes)
    assert digest(path) == GOLDENS[architecture, weights]
    synthesise(path, architecture=architecture, weights=weights, seed=2, **sizes)
    assert digest(path) != GOLDENS[architecture, weights]


def test_the_census_of_the_released_file() -> None:
    """Planned, not written: 17 GB."""
    layout = plan_synthesis(architecture="muse-glimmer", weights="census").layout
    tensors = {info.name: info for info in layout.tensors}
    assert len(tensors) == 731
    assert Counter(info.type.name for info in layout.tensors) == {
        "Q4_K": 365,
        "Q6_K": 52,
        "Q5_K": 1,
        "F32": 313,
    }
    assert layout.size - layout.data_offset == 16_743_567_360
    sizes = {
        "token_embd.weight": 756_467_712,
        "output.weight": 924_571_648,
        "output_norm.weight": 26_624,
        "blk.0.attn_q.weight": 15_335_424,
        "blk.7.attn_v.weight": 958_464,
        "blk.8.attn_v.weight": 1_397_760,
        "blk.8.ffn_down.weight": 109_025_280,
        "blk.51.attn_k_norm.weight": 512,
    }
    assert {name: tensors[name].size for name in sizes} == sizes
    six = [i for i in range(52) if tensors[f"blk.{i}.ffn_down.weight"].type is BlockType.Q6_K]
    assert six == [*range(6), *range(8, 45, 3), *range(45, 52)]
    values = [i for i in range(52) if tensors[f"blk.{i}.attn_v.weight"].type is BlockType.Q6_K]
    assert values == six


def test_the_census_of_the_released_gemma() -> None:
    layout = plan_synthesis(architecture="gemma3", weights="census").layout
    counts = {"F32": 109, "Q5_0": 81, "Q4_K": 27, "Q8_0": 10, "Q6_K": 9}
    assert Counter(info.type.name for info in layout.tensors) == counts
    assert layout.size - layout.data_offset == 253_113_024 - 6_525_120
    assert "output.weight" not in {info.name for info in layout.tensors}


def test_a_twin_has_the_census_and_metadata_of_its_file(tmp_path: Path) -> None:
    original, twin = tmp_path / "a.gguf", tmp_path / "b.gguf"
    synthesise(original, architecture="muse-glimmer", weights="census", seed=1, **TINY)
    synthesise(twin, like=original, seed=2)
    with GgufFile.open(original) as first, GgufFile.open(twin) as second:
        assert first.data_offset == second.data_offset
        head = slice(0, first.data_offset)
        assert original.read_bytes()[head] == twin.read_bytes()[head]
        assert dict(first.tensors) == dict(second.tensors)
        assert not np.array_equal(first.raw("output.weight"), second.raw("output.weight"))
    synthesise(twin, like=original, seed=1)
    assert digest(twin) == digest(original)


def test_a_twin_of_a_tied_file(tmp_path: Path) -> None:
    """Without a head of its own the embedding is scaled as the head that it is."""
    raw = np.zeros(320 * 68, np.uint8)
    tensors = {
        "token_embd.weight": PackedTensor((64, 320), BlockType.Q8_0, raw),
        "rope_freqs.weight": np.zeros(16, np.float32),
        "blk.0.attn_q.bias": np.zeros(64, np.float32),
    }
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "llama"}, tensors)
    synthesise(tmp_path / "b.gguf", like=tmp_path / "a.gguf")
    with GgufFile.open(tmp_path / "b.gguf") as file:
        size = np.sqrt(np.mean(dequantise(BlockType.Q8_0, file.raw("token_embd.weight")) ** 2))
        assert 1 / 16 < size < 1 / 4
        assert np.all(file.raw("rope_freqs.weight").view("<f4") == 1)
        assert np.abs(file.raw("blk.0.attn_q.bias").view("<f4")).max() <= 0.125


def test_norms_are_near_one_and_head_norms_constant(tmp_path: Path) -> None:
    synthesise(tmp_path / "f.gguf", architecture="muse-glimmer")
    with GgufFile.open(tmp_path / "f.gguf") as file:
        for name, info in file.tensors.items():
            if len(info.shape) > 1:
                continue
            values = file.raw(name).view("<f4")
            if name.endswith("_q_norm.weight"):
                assert np.all(values == np.float32(3.87))
            elif name.endswith("_k_norm.weight"):
                assert np.all(values == 1)
            else:
                centre = 0.5 if "post_" in name else 1.0
                assert np.all(np.abs(values / centre - 1) <= 0.25)
                assert len(np.unique(values)) > 20


class Greedy:
    """A prompt and its greedy continuation by the oracle: `ids` and the logits behind them."""

    def __init__(self, path: Path, steps: int) -> None:
        with GgufFile.open(path) as file:
            graph = build(file.metadata, file.tensors)
            oracle = Interpreter(graph, file, 64)
            logits = [oracle.forward(range(40, 52), range(12), [0] * 12, [11])[0]]
            self.ids = []
            for position in range(12, 12 + steps):
                self.ids.append(int(logits[-1].argmax()))
                logits.append(oracle.forward([self.ids[-1]], [position], [0], [0])[0])
        self.logits = np.stack(logits).astype(np.float64)

    def entropies(self) -> np.ndarray:
        p = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        return -(p * np.log2(p)).sum(axis=1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("weights", [*WEIGHTS, "census"])
def test_logits_are_lively(tmp_path: Path, architecture: str, weights: str) -> None:
    sizes = TINY if weights == "census" else {}
    synthesise(tmp_path / "f.gguf", architecture=architecture, weights=weights, **sizes)
    run = Greedy(tmp_path / "f.gguf", 12)
    assert np.isfinite(run.logits).all()
    assert np.abs(run.logits).max() < 16  # far from a softcap of 20
    assert run.logits.std() > 0.5
    assert run.entropies().min() > 1.0
    assert len(set(run.ids)) > 4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_head_scale_makes_margins(tmp_path: Path, architecture: str) -> None:
    margins = []
    for scale in (1, 4):
        path = tmp_path / f"{scale}.gguf"
        synthesise(path, architecture=architecture, weights="f32", head_scale=scale)
        ordered = np.sort(Greedy(path, 12).logits, axis=1)
        margins.append(np.median(ordered[:, -1] - ordered[:, -2]))
    assert margins[1] > 2 * margins[0]


def test_overrides_reach_the_graph(tmp_path: Path) -> None:
    sizes = {"layers": 5, "width": 96, "ffn": 64, "heads": 6, "kv_heads": 3, "head_dim": 16}
    sizes |= {"vocabulary": 400, "window": 5, "context": 77}
    synthesise(tmp_path / "f.gguf", architecture="muse-glimmer", weights="q4_0", **sizes)
    with GgufFile.open(tmp_path / "f.gguf") as file:
        graph = build(file.metadata, file.tensors)
        assert {name: info.shape for name, info in file.tensors.items()} == dict(graph.weights)
    assert [cache.window for cache in graph.caches] == [5, 5, 5, None, 5]
    assert {(cache.kv_heads, cache.head_dim) for cache in graph.caches} == {(3, 16)}
    assert graph.weights["blk.4.attn_output.weight"] == (96, 96)
    assert (graph.vocabulary, graph.context) == (400, 77)


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "f.gguf"
    bad = [
        {"architecture": "qwen9"},
        {"weights": "q3_k"},
        {"head_scale": 3},
        {"head_scale": 0},
        {"layers": 0},
        {"depth": 3},
        {"like": out, "layers": 3},
        {"like": out, "weights": "f32"},
    ]
    for arguments in bad:
        with pytest.raises(UsageError):
            synthesise(out, **arguments)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(LimitError, match="1,000 are free"):
        synthesise(out)
    monkeypatch.undo()
    blocks = PackedTensor((32, 1), BlockType.Q8_1, np.zeros(40, np.uint8))
    write_gguf(out, {"general.architecture": "llama"}, {"x": blocks})
    with pytest.raises(ModelError, match="Q8_1"):
        synthesise(tmp_path / "g.gguf", like=out)
    assert [path.name for path in tmp_path.iterdir()] == ["f.gguf"]


def test_only_a_file_is_replaced(tmp_path):
    with pytest.raises(UsageError, match="is not a file"):
        synthesise(tmp_path)
    assert not list(tmp_path.parent.glob(tmp_path.name + ".part"))
    (tmp_path / "pipe").symlink_to("/dev/null")
    with pytest.raises(UsageError, match="is not a file"):
        synthesise(tmp_path / "pipe")
