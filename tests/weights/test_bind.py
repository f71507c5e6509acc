"""Binding: missing, surplus, misshapen and damaged tensors; the grid of float weights."""

import os

import numpy as np
import pytest

from muser.errors import ModelError
from muser.formats import BlockType, GgufFile, PackedTensor, quantise, write_gguf
from muser.graph import oracle
from muser.models import build
from muser.weights import Weights
from muser.weights import bind as bind_module
from tests.models.test_graphs import LLAMA, MUSE


def write(path, metadata, change=None, kind=BlockType.F32):
    """A file of `metadata`'s graph with random tensors; `change(dict)` edits it before writing."""
    rng = np.random.default_rng(1)
    tensors = {}
    for name, shape in build(metadata).weights.items():
        values = rng.standard_normal(shape[::-1]).astype(np.float32)
        if name.endswith("attn_q_norm.weight"):
            values = np.full(shape, 3.87, np.float32)
        if name.endswith("attn_k_norm.weight"):
            values = np.ones(shape, np.float32)
        block = kind if len(shape) == 2 else BlockType.F32
        tensors[name] = (shape, block, quantise(block, values.reshape(-1, shape[0])))
    if change is not None:
        change(tensors)
    write_gguf(path, metadata, {name: PackedTensor(*entry) for name, entry in tensors.items()})
    return path


def bind(path, memory=None):
    file = GgufFile.open(path)
    return Weights(file, build(file.metadata, file.tensors), memory)


def test_binds_in_place(tmp_path):
    weights = bind(write(tmp_path / "a.gguf", LLAMA))
    tensor = weights.tensor("blk.1.ffn_down.weight")
    assert tensor.shape == (96, 32)
    assert tensor.rows == 32
    assert tensor.row_bytes() == 384
    assert not tensor.raw.flags.owndata
    assert weights.census == {"F32": 21}


class Memory:
    """Words by name, in a dict."""

    def __init__(self):
        self.words = {}
        self.note, self.remember = self.words.get, self.words.__setitem__


@pytest.fixture
def looked(monkeypatch):
    """Names of the tensors whose scales were looked at."""
    names, check = [], bind_module._check_scales

    def watch(tensor, file):
        names.append(tensor.name)
        check(tensor, file)

    monkeypatch.setattr(bind_module, "_check_scales", watch)
    return names


def test_a_file_that_was_looked_at_is_not_looked_at_again(tmp_path, looked):
    path, memory = write(tmp_path / "a.gguf", LLAMA), Memory()
    for _ in range(2):
        assert len(bind(path, memory).tensors) == len(looked) == 21
    os.utime(path, ns=(1, 1))
    bind(path, memory)
    assert len(looked) == 42
    bind(path)
    assert len(looked) == 63


def test_the_same_time_of_modification_is_not_enough(tmp_path, looked):
    """What is written later has another time of change, whatever else it pretends."""
    path, memory = write(tmp_path / "a.gguf", LLAMA), Memory()
    before = path.stat()
    bind(path, memory)
    raw = bytearray(path.read_bytes())
    raw[-4:] = np.float32(np.inf).tobytes()
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(raw)
        os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(ModelError, match="infinite or NaN"):
        bind(path, memory)


def test_a_damaged_file_is_not_remembered(tmp_path):
    path, memory = write(tmp_path / "a.gguf", LLAMA, infinite), Memory()
    for _ in range(2):
        with pytest.raises(ModelError, match="infinite or NaN"):
            bind(path, memory)
    assert memory.words == {}


def test_grid_equals_the_oracle(tmp_path):
    weights = bind(write(tmp_path / "a.gguf", LLAMA))
    tensor = weights.tensor("blk.0.ffn_down.weight")
    grid = weights.grid("blk.0.ffn_down.weight")
    codes, steps = oracle.weight_grid(tensor.type, tensor.raw.reshape(tensor.rows, -1))
    assert (grid.codes == codes.reshape(32, -1)[:, :96]).all()
    assert (grid.steps == steps).all()


def replaced(name, entry):
    def change(tensors):
        tensors[name] = entry

    return change


def removed(name):
    return lambda tensors: tensors.pop(name)


def zeros(*shape):
    return (shape, BlockType.F32, np.zeros((int(np.prod(shape[1:])), shape[0] * 4), np.uint8))


def infinite(tensors):
    shape, block, raw = tensors["blk.1.attn_q.weight"]
    raw = raw.copy()
    raw[5, 4:8] = np.array([np.inf], np.float32).view(np.uint8)
    tensors["blk.1.attn_q.weight"] = (shape, block, raw)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (removed("blk.1.attn_k.weight"), "has no tensor 'blk.1.attn_k.weight'"),
        (replaced("blk.0.attn_q.bias", zeros(32)), "holds 'blk.0.attn_q.bias'"),
        (replaced("blk.0.attn_q.weight", zeros(32, 16)), "has shape [32, 16]"),
        (infinite, "blk.1.attn_q.weight of"),
    ],
    ids=["missing", "surplus", "shape", "infinite"],
)
def test_refusals(tmp_path, change, word):
    with pytest.raises(ModelError, match=r".") as caught:
        bind(write(tmp_path / "bad.gguf", LLAMA, change))
    assert word in caught.value.sentence


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_an_infinite_block_scale_is_found(tmp_path, name):
    def change(tensors):
        shape, block, raw = tensors["blk.0.ffn_up.weight"]
        raw = raw.copy()
        raw[7, 0:2] = [0x00, 0x7C]
        tensors["blk.0.ffn_up.weight"] = (shape, block, raw)

    with pytest.raises(ModelError, match="infinite or NaN scale"):
        bind(write(tmp_path / "bad.gguf", LLAMA, change, BlockType[name]))


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e-3], ids=str)
def test_a_rotation_factor_that_overflows_an_angle_is_refused(tmp_path, factor):
    def change(tensors):
        values = np.array([1, 2, factor, 4], np.float32).view(np.uint8).reshape(1, -1)
        tensors["rope_freqs.weight"] = ((4,), BlockType.F32, values)

    with pytest.raises(ModelError, match=r"rope_freqs.weight holds"):
        bind(write(tmp_path / "bad.gguf", LLAMA, change))


def test_the_last_scale_of_a_long_tensor_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr("muser.weights.bind.CHECK_CHUNK", 7)

    def change(tensors):
        raw = tensors["blk.1.ffn_up.weight"][2]
        raw.reshape(-1)[-4:] = np.array([np.nan], np.float32).view(np.uint8)

    assert bind(write(tmp_path / "good.gguf", LLAMA)).census == {"F32": 21}
    with pytest.raises(ModelError, match=r"blk.1.ffn_up.weight of"):
        bind(write(tmp_path / "bad.gguf", LLAMA, change))


def test_a_learned_qk_norm_is_another_model(tmp_path):
    assert bind(write(tmp_path / "good.gguf", MUSE)).census["F32"] > 0
    learned = np.linspace(3.8, 3.9, 32, dtype=np.float32).view(np.uint8).reshape(1, -1)
    change = replaced("blk.7.attn_q_norm.weight", ((32,), BlockType.F32, learned))
    with pytest.raises(ModelError, match="a learned QK-norm"):
        bind(write(tmp_path / "bad.gguf", MUSE, change))
    scaled = np.full(32, 2, np.float32).view(np.uint8).reshape(1, -1)
    change = replaced("blk.0.attn_k_norm.weight", ((32,), BlockType.F32, scaled))
    with pytest.raises(ModelError, match="constant 1"):
        bind(write(tmp_path / "bad2.gguf", MUSE, change))
