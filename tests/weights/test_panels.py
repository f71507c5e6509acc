"""Packed weights: the panels against a plain transposition."""

import numpy as np
import pytest

from muser.formats import FLOATS, BlockType
from muser.graph.arithmetic import GRID_BLOCK
from muser.weights.packing import pack
from tests.kernels.bench import TYPES
from tests.weights.sources import source_of

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


def test_pieces_cover_a_tensor_larger_than_one(library, tmp_path, monkeypatch):
    tensors = source_of(BlockType.Q8_0, 64, 100)
    whole = pack(library, tensors, ["w"], tmp_path, 1)["w"]
    monkeypatch.setattr("muser.weights.panels.AT_ONCE", 1)
    assert pack(library, tensors, ["w"], tmp_path, 1)["w"].tobytes() == whole.tobytes()
