import struct
from pathlib import Path

import numpy as np
import pytest

from muser.errors import FormatError, UsageError
from muser.formats import BlockType, GgufFile, TensorInfo, ValueType
from tests.formats import gguf_bytes as gb


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "file.gguf"
    path.write_bytes(data)
    return path


def refusal(tmp_path: Path, data: bytes) -> str:
    path = write(tmp_path, data)
    with pytest.raises(FormatError) as caught:
        GgufFile.open(path)
    assert str(path) in caught.value.sentence
    assert caught.value.remedy
    return caught.value.sentence


def test_values_of_every_kind(tmp_path: Path) -> None:
    metadata = GgufFile.open(write(tmp_path, gb.small())).metadata
    scalars = {key: metadata[key] for key in metadata if metadata.types[key] is not ValueType.ARRAY}
    assert scalars == {
        "general.architecture": "llama",
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -1,
        "u32": 4294967295,
        "i32": -1,
        "f32": float(np.float32(0.1)),
        "yes": True,
        "u64": (1 << 64) - 1,
        "i64": -1,
        "f64": 0.1,
    }
    assert {type(value) for value in scalars.values()} == {int, float, bool, str}
    assert list(metadata["tokens"]) == ["a", "", "é"]
    assert metadata["tokens"][1:] == ["", "é"]
    assert metadata["tokens"].raw_bytes(2) == "é".encode()
    assert metadata["numbers"].tolist() == [-1, 0, 1]
    assert metadata["numbers"].dtype == np.int16
    assert metadata["flags"].tolist() == [False, True]
    assert list(metadata["nested"][0]) == ["x"]
    assert metadata["nested"][1].tolist() == [7]
    assert metadata.types["u16"] is ValueType.U16
    with pytest.raises(ValueError, match="read-only"):
        metadata["numbers"][0] = 5


def test_tensors_and_views(tmp_path: Path) -> None:
    with GgufFile.open(write(tmp_path, gb.small())) as file:
        start = file.data_offset
        assert start % 32 == 0
        assert list(file.tensors.values()) == [
            TensorInfo("norm", (3,), BlockType.F32, start, 12),
            TensorInfo("weight", (32, 2), BlockType.Q8_0, start + 32, 68),
        ]
        view = file.raw("weight")
        assert view.tolist() == list(range(68))
        assert not view.flags.writeable
        assert (file.version, file.alignment, file.size) == (3, 32, len(gb.small()))
    assert view.tolist() == list(range(68))  # a view outlives its file
    with pytest.raises(UsageError, match="closed"):
        file.raw("weight")


def test_vocabulary_only_file(tmp_path: Path) -> None:
    file = GgufFile.open(
        write(tmp_path, gb.gguf([gb.record("t", 9, gb.strings("a"))]).rstrip(b"\0"))
    )
    assert list(file.metadata["t"]) == ["a"]
    assert dict(file.tensors) == {}


def test_a_larger_alignment(tmp_path: Path) -> None:
    records = [gb.record("general.alignment", 4, struct.pack("<I", 128))]
    data = gb.gguf(records, [gb.tensor("t", [1], 0, 0)], b"\0\0\x80\x3f", alignment=128)
    file = GgufFile.open(write(tmp_path, data))
    assert file.data_offset == 128
    assert file.raw("t").view("<f4").tolist() == [1.0]


def test_a_bad_string_is_refused_when_it_is_read(tmp_path: Path) -> None:
    file = GgufFile.open(write(tmp_path, gb.gguf([gb.record("t", 9, gb.strings("a", b"\xff"))])))
    assert file.metadata["t"][0] == "a"
    assert file.metadata["t"].raw_bytes(1) == b"\xff"
    with pytest.raises(FormatError, match="item 1 of 't'"):
        file.metadata["t"][1]
    with pytest.raises(FormatError, match="item 1 of 't'"):
        list(file.metadata["t"])


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened"):
        GgufFile.open(tmp_path / "none.gguf")


U64 = struct.Struct("<Q").pack
HUGE = (1 << 64) - 1
X = gb.tensor("x", [1], 0, 0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "magic", id="empty"),
        pytest.param(gb.gguf(magic=b"GGML"), "not a GGUF file", id="magic"),
        pytest.param(gb.gguf(version=b"\1\0\0\0"), "version 1 ", id="version"),
        pytest.param(gb.gguf(version=b"\0\0\0\3"), "big-endian", id="big-endian"),
        pytest.param(gb.gguf(counts=(HUGE, 0)), "tensors are more than", id="tensors"),
        pytest.param(gb.gguf(counts=(9, 0)), "9 tensor records needs", id="tensors-left"),
        pytest.param(gb.gguf(counts=(0, HUGE)), "metadata records are more", id="records"),
        pytest.param(gb.gguf(counts=(0, 9)), "9 metadata records needs", id="records-left"),
        pytest.param(gb.gguf([U64(HUGE) + bytes(9)]), "a metadata key is", id="key-length"),
        pytest.param(gb.gguf([gb.record("k", 13, b"\0")]), "value type 13 of 'k'", id="tag"),
        pytest.param(gb.gguf([gb.record("k", 7, b"\2")]), "neither 0 nor 1", id="bool"),
        pytest.param(gb.gguf([gb.record("k", 8, U64(HUGE))]), "the value of 'k' is", id="string"),
        pytest.param(
            gb.gguf([gb.record("k", 8, U64(1000))]), "the value of 'k' needs 1000", id="string-left"
        ),
        pytest.param(
            gb.gguf([gb.record("k", 9, struct.pack("<IQ", 12, HUGE))]), "items of 'k'", id="items"
        ),
        pytest.param(
            gb.gguf([gb.record("k", 9, struct.pack("<IQ", 12, 1 << 20))]),
            "1048576 items of 'k' needs",
            id="items-left",
        ),
        pytest.param(
            gb.gguf([gb.record("k", 9, struct.pack("<IQ", 8, 2) + U64(HUGE) + bytes(32))]),
            "'k' passes the end of the file after 1",
            id="string-array",
        ),
        pytest.param(
            gb.gguf([gb.record("k", 9, struct.pack("<IQ", 9, 1) * 9 + bytes(99))]),
            "nested too deep",
            id="nesting",
        ),
        pytest.param(
            gb.gguf([gb.record("k", 9, struct.pack("<IQ", 9, 5000) + bytes(60000))]),
            "too many",
            id="arrays",
        ),
        pytest.param(
            gb.gguf([gb.record("k", 0, b"\0")] * 2), "'k' is listed twice", id="key-twice"
        ),
        pytest.param(gb.gguf([gb.record("k", 8, gb.text(b"\xff"))]), "not UTF-8", id="value-utf8"),
        pytest.param(gb.gguf([gb.record(b"\xff", 0, b"\0")]), "not UTF-8", id="key-utf8"),
        pytest.param(
            gb.gguf([gb.record("general.alignment", 4, b"\x18\0\0\0")]),
            "24, not a power of two",
            id="alignment",
        ),
        pytest.param(
            gb.gguf([gb.record("general.alignment", 8, gb.text("32"))]),
            "'32', not a power of two",
            id="alignment-type",
        ),
        pytest.param(gb.gguf((), [X, X], bytes(4)), "'x' is listed twice", id="tensor-twice"),
        pytest.param(
            gb.gguf((), [gb.tensor("x", [], 0, 0)], bytes(32)), "has 0 dimensions", id="rank-0"
        ),
        pytest.param(
            gb.gguf((), [gb.tensor("x", [1] * 5, 0, 0)], bytes(32)), "has 5 dimensions", id="rank-5"
        ),
        pytest.param(
            gb.gguf((), [gb.tensor("x", [1], 999, 0)], bytes(32)), "unknown type 999", id="type"
        ),
        pytest.param(
            gb.gguf((), [gb.tensor("x", [0], 0, 0)], bytes(32)), "shape [0]", id="zero-extent"
        ),
        pytest.param(
            gb.gguf((), [gb.tensor("x", [33], 8, 0)], bytes(64)), "shape [33]", id="part-block"
        ),
        pytest.param(
            gb.gguf((), [gb.tensor("x", [1 << 32] * 2, 0, 0)], bytes(64)), "'x'", id="overflow"
        ),
        pytest.param(
            gb.gguf((), [gb.tensor("x", [1 << 40], 0, 0)], bytes(64)), "'x' ends at", id="size"
        ),
        pytest.param(
            gb.gguf((), [gb.tensor("x", [1], 0, HUGE - 31)], bytes(64)), "'x' ends at", id="offset"
        ),
        pytest.param(gb.gguf((), [X], b"\0\0\0"), "'x' ends at", id="cut-tensor"),
        pytest.param(
            gb.gguf((), [gb.tensor("x", [1], 0, 4)], bytes(64)), "not aligned", id="unaligned"
        ),
        pytest.param(
            gb.gguf((), [gb.tensor("y", [9], 0, 0), gb.tensor("x", [1], 0, 32)], bytes(64)),
            "'y' and 'x' overlap",
            id="overlap",
        ),
        pytest.param(gb.gguf((), [gb.tensor("n" * 257, [1], 0, 0)]), "tensor name is", id="name"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    assert says in refusal(tmp_path, data)
