"""Blocks against the `gguf` package, bit for bit, and against worked examples."""

import warnings

import gguf
import numpy as np
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muser.errors import FormatError, ModelError, UsageError
from muser.formats import FLOATS, READABLE, BlockType, dequantise, quantise, unpack

QUANTISED = sorted(READABLE.difference(FLOATS), key=lambda kind: kind.id)
WITH_PEER_QUANTISER = [kind for kind in QUANTISED if kind.elements == 32]
HALVES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip
EDGES = (0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0x7E01)


def peer(kind: BlockType, raw: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return quants.dequantize(raw, gguf.GGMLQuantizationType[kind.name])


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal words; where both are no number, which one it is does not matter."""
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    numbers = ~np.isnan(theirs)
    assert np.array_equal(numbers, ~np.isnan(ours))
    assert np.array_equal(ours.view(np.uint32)[numbers], theirs.view(np.uint32)[numbers])


def test_the_table_is_ggmls() -> None:
    table = {kind.name: (kind.id, kind.elements, kind.bytes) for kind in BlockType}
    sizes = gguf.GGML_QUANT_SIZES.items()
    assert table.items() <= {kind.name: (kind.value, *size) for kind, size in sizes}.items()
    assert len({kind.id for kind in BlockType}) == len(BlockType)


def test_row_bytes() -> None:
    assert BlockType.Q4_K.row_bytes(6656) == 26 * 144
    assert BlockType.F16.row_bytes(7) == 14
    for n in (0, -256, 255):
        with pytest.raises(FormatError):
            BlockType.Q4_K.row_bytes(n)


@pytest.mark.parametrize("kind", [*FLOATS, *QUANTISED], ids=lambda kind: kind.name)
def test_dequantise_random_bytes(kind: BlockType) -> None:
    raw = np.random.default_rng(kind.id).integers(0, 256, (40, 6 * kind.bytes), np.uint8)
    assert_same_bits(dequantise(kind, raw), peer(kind, raw))


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_dequantise_edge_scales(kind: BlockType) -> None:
    places = HALVES[kind.name]
    raw = np.random.default_rng(7).integers(
        0, 256, (len(EDGES) ** len(places), kind.bytes), np.uint8
    )
    pairs = np.array(np.meshgrid(*[EDGES] * len(places)), "<u2").reshape(len(places), -1)
    for place, values in zip(places, pairs, strict=True):
        raw[:, place : place + 2] = values[:, None].view(np.uint8)
    assert_same_bits(dequantise(kind, raw), peer(kind, raw))


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_unpacked_parts_make_the_values(kind: BlockType) -> None:
    raw = np.random.default_rng(3).integers(0, 60, (2, 3, 2 * kind.bytes), np.uint8)
    parts = unpack(kind, raw)
    rows, blocks, elements = parts.codes.shape
    assert (rows, blocks, elements) == (6, 2, kind.elements)
    assert parts.codes.dtype == np.int16
    assert parts.d.shape == (6, 2)
    groups = 1 if parts.scales is None else parts.scales.shape[-1]
    for at in range(0, elements, 37):
        group = at * groups // elements
        scale = 1 if parts.scales is None else int(parts.scales[5, 1, group])
        value = np.float32(parts.d[5, 1]) * np.float32(scale) * np.float32(parts.codes[5, 1, at])
        if parts.mins is not None:
            value = value - parts.dmin[5, 1] * np.float32(parts.mins[5, 1, group])
        if parts.offset is not None:
            value = value + parts.offset[5, 1]
        assert value == parts.values()[5, elements + at]


def test_q4_k_worked_example() -> None:
    head = bytes.fromhex("0028 0020 944C6C0804504898C149C149")
    raw = np.frombuffer(head + bytes([0x5E]) + bytes(31) + bytes([0x3C]) + bytes(95), np.uint8)
    parts = unpack(BlockType.Q4_K, raw)
    assert parts.scales.tolist() == [[[20, 12, 44, 8, 33, 25, 17, 9]]]
    assert parts.mins.tolist() == [[[4, 16, 8, 24, 12, 20, 28, 36]]]
    assert dequantise(BlockType.Q4_K, raw)[0, [0, 32, 64]].tolist() == [8.71875, 1.75, 16.4375]


@pytest.mark.parametrize("name", ["Q5_0", "Q5_1"])
def test_fifth_bits_worked_example(name: str) -> None:
    """d = 1, m = 0.5; the fifth bits of elements 0, 17 and 31, nibbles 2 (0) and 3 (16)."""
    head = bytes.fromhex("003C" + ("0038" if name == "Q5_1" else ""))
    raw = np.frombuffer(head + bytes.fromhex("01000280 32") + bytes(15), np.uint8)
    expected = np.zeros(32, np.float32)
    expected[[0, 16, 17, 31]] = 18, 3, 16, 16
    expected += np.float32(0.5 if name == "Q5_1" else -16)
    assert np.array_equal(dequantise(BlockType[name], raw)[0], expected)


values = hnp.arrays(np.float32, (3, 64), elements=st.floats(-65504, 65504, width=32))


@pytest.mark.parametrize("kind", WITH_PEER_QUANTISER, ids=lambda kind: kind.name)
@settings(max_examples=100, deadline=None)
@given(x=values)
def test_quantise_equals_the_peer(kind: BlockType, x: np.ndarray) -> None:
    x = np.where(np.abs(x) < np.float32(2**-100), np.float32(0), x)  # 1/d of the peer overflows
    theirs = quants.quantize(x, gguf.GGMLQuantizationType[kind.name])
    assert np.array_equal(quantise(kind, x), theirs)


@pytest.mark.parametrize("kind", [BlockType.F16, BlockType.BF16], ids=lambda kind: kind.name)
@settings(max_examples=100, deadline=None)
@given(x=hnp.arrays(np.float32, (2, 8), elements=st.floats(width=32)))
def test_narrowing_equals_the_peer(kind: BlockType, x: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        theirs = quants.quantize(x, gguf.GGMLQuantizationType[kind.name])
    assert np.array_equal(quantise(kind, x), theirs.view(np.uint8))


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_values_stay_near(kind: BlockType) -> None:
    rng = np.random.default_rng(kind.id)
    x = rng.standard_normal((8, 512)).astype(np.float32)
    x[0] = 0
    x[1] = np.abs(x[1])
    x[2] = -np.abs(x[2])
    x[3, ::3] = 0
    back = dequantise(kind, quantise(kind, x))
    assert np.array_equal(back[0], x[0])
    # Half a step of the coarsest grid, plus the rounding of the scales to 6 or 8 bits.
    steps = {
        "Q8_0": 254, "Q4_0": 15, "Q4_1": 29, "Q5_0": 31, "Q5_1": 61,
        "Q4_K": 26, "Q5_K": 50, "Q6_K": 60,
    }[kind.name]  # fmt: skip
    reach = np.ptp(x.reshape(8, -1, kind.elements), axis=-1).clip(np.abs(x).max(axis=1)[:, None])
    error = np.abs(back - x).reshape(8, -1, kind.elements).max(axis=-1)
    assert np.all(error * steps <= reach * 1.01)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_quantising_hits_representable_values(name: str) -> None:
    """Values that a block can hold exactly, extremes included, come back unchanged."""
    kind = BlockType[name]
    top, low = {"Q4_K": (15, 0), "Q5_K": (31, 0), "Q6_K": (31, -32)}[name]
    codes = np.random.default_rng(1).integers(low, top + 1, 256).astype(np.float32)
    per = 16 if name == "Q6_K" else 32
    codes.reshape(-1, per)[:, 0] = low if name == "Q6_K" else top
    x = codes * np.float32(63 * 2**-9 if name != "Q6_K" else 128 * 2**-9)
    assert np.array_equal(dequantise(kind, quantise(kind, x[None]))[0], x)


def test_refusals() -> None:
    with pytest.raises(ModelError, match="Q8_1"):
        unpack(BlockType.Q8_1, np.zeros(40, np.uint8))
    with pytest.raises(ModelError, match="I32"):
        dequantise(BlockType.I32, np.zeros(4, np.uint8))
    with pytest.raises(ModelError, match="F32"):
        unpack(BlockType.F32, np.zeros(4, np.uint8))
    with pytest.raises(ModelError, match="Q2_K"):
        quantise(BlockType.Q2_K, np.zeros((1, 256), np.float32))
    with pytest.raises(FormatError, match="17 bytes"):
        unpack(BlockType.Q4_0, np.zeros((2, 17), np.uint8))
    for bad in (np.nan, np.inf, 1e5):
        with pytest.raises(UsageError, match="65504"):
            quantise(BlockType.Q4_0, np.full((1, 32), bad, np.float32))
