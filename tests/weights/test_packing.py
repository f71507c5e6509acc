"""Packed weights: the panels against a plain transposition, and the file that keeps them."""

import json
import logging
import os

import numpy as np
import pytest

from muser.formats import FLOATS, BlockType
from muser.graph.arithmetic import GRID_BLOCK
from muser.kernels import Shelf, choose_library, load_library, supported_isas
from muser.places import libraries
from muser.weights import packing
from muser.weights.packing import PAGE, pack
from muser.weights.panels import Packer
from tests.kernels.bench import TYPES, Tensors, random_blocks

LANES, LINE = 16, 64
PARTS = {  # byte offset and dwords in a block, in packed order; the halves come first
    BlockType.Q8_0: ((0,), ((2, 8),)),
    BlockType.Q4_0: ((0,), ((2, 4),)),
    BlockType.Q4_1: ((0, 2), ((4, 4),)),
    BlockType.Q5_0: ((0,), ((2, 1), (6, 4))),
    BlockType.Q5_1: ((0, 2), ((4, 1), (8, 4))),
    BlockType.Q4_K: ((0, 2), ((4, 3), (16, 32))),
    BlockType.Q5_K: ((0, 2), ((4, 3), (16, 8), (48, 32))),
    BlockType.Q6_K: ((208,), ((192, 4), (128, 16), (0, 32))),
}
FIFTHS = {BlockType.Q5_0: 2, BlockType.Q5_1: 4}


@pytest.fixture(scope="module")
def library():
    """The best library of this machine that reads panels."""
    shelf = Shelf(libraries())
    for isa in reversed(supported_isas(choose_library(shelf, "c"))):
        found = load_library(isa, shelf)
        if found.constants.packed:
            return found
    pytest.skip("no instruction set of this machine reads panels")


def source_of(kind, width, out, seed=3):
    tensors = Tensors()
    tensors.put("w", kind, random_blocks(np.random.default_rng(seed), kind, out, width), width)
    return tensors


def panels_of(heads, bodies):
    """Heads and bodies `[panels, blocks, bytes]`: the heads of a panel first, to a full line."""
    panels, pieces = len(heads), [heads.reshape(len(heads), -1)]
    pieces.append(np.zeros((panels, -pieces[0].shape[1] % LINE), np.uint8))
    return np.concatenate([*pieces, bodies.reshape(panels, -1)], axis=1)


def plain_panels(kind, tensor):
    """`cpu/pack.h` in NumPy: `[panels, bytes]` of a quantised tensor."""
    width, out = tensor.shape
    rows = np.zeros((-(-out // LANES) * LANES, tensor.row_bytes()), np.uint8)
    rows[:out] = tensor.raw.reshape(out, -1)
    blocks = rows.reshape(-1, LANES, width // kind.elements, kind.bytes).transpose(0, 2, 1, 3)
    halves, parts = PARTS[kind]
    heads = [np.ascontiguousarray(blocks[..., at : at + 2]) for at in halves]
    heads = [head.reshape(*head.shape[:2], -1) for head in heads]
    bodies = []
    for at, dwords in parts:
        run = np.ascontiguousarray(blocks[..., at : at + 4 * dwords])
        if at == FIFTHS.get(kind):
            bits = np.unpackbits(run, axis=-1, bitorder="little").reshape(*run.shape[:3], 8, 4)
            run = np.packbits(bits.swapaxes(-1, -2), axis=-1, bitorder="little")[..., 0]
        turned = run.reshape(*run.shape[:3], dwords, 4).swapaxes(-2, -3)
        bodies.append(turned.reshape(*turned.shape[:2], -1))
    return panels_of(np.concatenate(heads, axis=-1), np.concatenate(bodies, axis=-1))


def plain_grid(tensors, tensor):
    grid = tensors.grid("w")
    width, out = tensor.shape
    blocks, panels = -(-width // GRID_BLOCK), -(-out // LANES)
    codes = np.zeros((panels * LANES, blocks * GRID_BLOCK), np.int16)
    codes[:out, :width] = grid.codes
    steps = np.zeros((panels * LANES, blocks), np.float32)
    steps[:out] = np.ldexp(np.float32(1), grid.steps.astype(np.int32))
    heads = steps.reshape(panels, LANES, blocks).swapaxes(1, 2)
    pairs = codes.reshape(panels, LANES, blocks, GRID_BLOCK // 2, 2).transpose(0, 2, 3, 1, 4)
    return panels_of(*(np.ascontiguousarray(part).view(np.uint8) for part in (heads, pairs)))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("out", [1, 16, 37])
def test_panels_are_the_files_bytes_turned(library, tmp_path, kind, out):
    width = {32: 96, 256: 512, 1: 200}[kind.elements]
    tensors = source_of(kind, width, out)
    tensor = tensors.tensor("w")
    packed = pack(library, tensors, ["w"], tmp_path, 2)["w"]
    plain = plain_grid(tensors, tensor) if kind in FLOATS else plain_panels(kind, tensor)
    assert packed.tobytes() == plain.tobytes()
    if kind not in FLOATS and out == LANES:
        assert packed.size - tensor.raw.size < LINE


@pytest.fixture
def kept(library, tmp_path, monkeypatch):
    """A source with an origin, small enough for tests and large enough to be kept."""
    monkeypatch.setattr(packing, "KEPT_FROM", 1)
    tensors = source_of(BlockType.Q4_1, 96, 37)
    tensors.put(
        "v", BlockType.F16, random_blocks(np.random.default_rng(5), BlockType.F16, 5, 200), 200
    )
    (tmp_path / "model.gguf").write_bytes(b"model")
    tensors.origin = (tmp_path / "model.gguf").stat()
    folder = tmp_path / "packed"

    def take():
        return pack(library, tensors, ["w", "v", "w"], folder, 2)

    return tensors, folder, take


def same(left, right):
    return left.keys() == right.keys() and all(
        left[name].tobytes() == right[name].tobytes() for name in left
    )


def test_a_kept_file_is_taken_again(kept, caplog):
    _, folder, take = kept
    with caplog.at_level(logging.INFO):
        first = take()
    assert "once for this model" in caplog.text
    assert "MB of memory" in caplog.text
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    before = file.stat().st_mtime_ns, file.stat().st_ino
    caplog.clear()
    assert same(first, take())
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before
    assert caplog.text == ""
    head = json.loads(file.read_bytes()[:PAGE])
    assert [line[0] for line in head["tensors"]] == ["w", "v"]


def shorten(file):
    os.truncate(file, file.stat().st_size - 1)


def spoil_head(file):
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)


def spoil_panel(file):
    data = bytearray(file.read_bytes())
    data[PAGE + 7] ^= 1
    file.write_bytes(data)


def open_to_all(file):
    file.chmod(0o666)


def put_pipe(file):
    file.unlink()
    os.mkfifo(file)


def put_link(file):
    target = file.with_name("elsewhere")
    file.rename(target)
    file.symlink_to(target)


@pytest.mark.parametrize("harm", [put_pipe, put_link])
def test_what_is_no_plain_file_is_said_and_replaced(kept, caplog, harm):
    _, folder, take = kept
    first = {name: data.copy() for name, data in take().items()}
    (file,) = folder.iterdir()
    harm(file)
    caplog.clear()
    assert same(first, take())
    assert str(file) in caplog.text
    assert not file.is_symlink()
    assert file.is_file()


@pytest.mark.parametrize("harm", [shorten, spoil_head, spoil_panel, open_to_all])
def test_a_harmed_file_is_made_again_and_said(kept, caplog, harm):
    _, folder, take = kept
    first = {name: data.copy() for name, data in take().items()}
    (file,) = folder.iterdir()
    harm(file)
    caplog.clear()
    assert same(first, take())
    assert "made again" in caplog.text
    assert same(first, take())


def test_another_model_file_gets_its_own(kept, tmp_path):
    tensors, folder, take = kept
    take()
    (tmp_path / "model.gguf").write_bytes(b"another model")
    tensors.origin = (tmp_path / "model.gguf").stat()
    take()
    assert len(list(folder.iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_said_and_done_without(kept, caplog):
    _, folder, take = kept
    folder.write_text("no folder")
    packed = take()
    assert "memory hold them" in caplog.text
    assert packed["w"].size


def test_nothing_is_left_behind_by_a_failure(kept, monkeypatch):
    _, folder, take = kept

    def fail(self, source, panels):
        raise KeyboardInterrupt

    monkeypatch.setattr(Packer, "pieces", fail)
    with pytest.raises(KeyboardInterrupt):
        take()
    assert list(folder.iterdir()) == []


def test_pieces_cover_a_tensor_larger_than_one(library, tmp_path, monkeypatch):
    tensors = source_of(BlockType.Q8_0, 64, 100)
    whole = pack(library, tensors, ["w"], tmp_path, 1)["w"]
    monkeypatch.setattr("muser.weights.panels.AT_ONCE", 1)
    assert pack(library, tensors, ["w"], tmp_path, 1)["w"].tobytes() == whole.tobytes()
