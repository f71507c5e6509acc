import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from muser.errors import FormatError
from muser.formats import (
    BlockType,
    GgufFile,
    GgufWriter,
    Layout,
    PackedTensor,
    TensorPlan,
    ValueType,
    lay_out,
    quantise,
    type_of,
    write_gguf,
)
from tests.formats import gguf_bytes as gb

METADATA = {
    "general.architecture": "llama",
    "small": 7,
    "negative": -7,
    "large": 1 << 40,
    "deep": -(1 << 40),
    "wide": np.int64(5),
    "eps": 1e-5,
    "exact": np.float64(0.1),
    "yes": True,
    "words": ["a", "é", ""],
    "ids": [1, -2, 3],
    "long": [1, 1 << 40],
    "bits": [True, False],
    "floats": [0.5, 2.0],
    "typed": np.arange(3, dtype=np.uint8),
    "nothing": [],
    "nested": [["a"], [1, 2]],
}


def test_a_twin_is_the_same_file(tmp_path: Path) -> None:
    original = tmp_path / "a.gguf"
    original.write_bytes(gb.small())
    with GgufFile.open(original) as file:
        plans = [TensorPlan(t.name, t.shape, t.type) for t in file.tensors.values()]
        layout = lay_out(file.metadata, plans)
        with GgufWriter(tmp_path / "b.gguf", layout) as writer:
            for info in layout.tensors:
                writer.begin(info)
                writer.write(file.raw(info.name))
    assert (tmp_path / "b.gguf").read_bytes() == gb.small()
    assert not (tmp_path / "b.gguf.part").exists()


def test_natural_types_are_read_back(tmp_path: Path) -> None:
    write_gguf(tmp_path / "f.gguf", METADATA, {})
    file = GgufFile.open(tmp_path / "f.gguf")
    assert list(file.metadata) == list(METADATA)
    kinds = {key: kind.name for key, kind in file.metadata.types.items()}
    assert kinds == {key: type_of(METADATA, key).name for key in METADATA}
    assert [kinds[k] for k in ("small", "negative", "large", "deep", "wide", "eps", "exact")] == [
        "U32",
        "I32",
        "U64",
        "I64",
        "I64",
        "F32",
        "F64",
    ]
    assert file.metadata["exact"] == 0.1
    assert list(file.metadata["words"]) == METADATA["words"]
    assert file.metadata["ids"].dtype == np.int32
    assert file.metadata["long"].tolist() == [1, 1 << 40]
    assert file.metadata["bits"].dtype == np.bool_
    assert file.metadata["floats"].dtype == np.float32
    assert file.metadata["typed"].dtype == np.uint8
    assert len(file.metadata["nothing"]) == 0
    assert list(file.metadata["nested"][0]) == ["a"]
    assert file.metadata.types["words"] is ValueType.ARRAY


def test_the_gguf_package_reads_what_we_write(tmp_path: Path) -> None:
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    blocks = PackedTensor((32, 2), BlockType.Q8_0, quantise(BlockType.Q8_0, values))
    write_gguf(tmp_path / "f.gguf", METADATA, {"a": values[:, :3], "b": blocks})
    reader = gguf.GGUFReader(tmp_path / "f.gguf")
    assert reader.fields["small"].contents() == 7
    assert reader.fields["words"].contents() == METADATA["words"]
    first, second = reader.tensors
    assert (first.name, first.shape.tolist()) == ("a", [3, 2])
    assert first.data.tolist() == values[:, :3].tolist()
    assert (second.name, second.tensor_type.name) == ("b", "Q8_0")
    assert np.array_equal(second.data.reshape(-1), blocks.raw.reshape(-1))


def test_a_file_near_memorys_size_is_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system cannot drop pages")
    monkeypatch.setattr(os, "sysconf", lambda _: 8)  # 64 bytes of memory
    monkeypatch.setattr("muser.formats.gguf_writer.STRETCH", 40)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_size))
    layout = lay_out({}, [TensorPlan("a", (30,), BlockType.F32)])
    with GgufWriter(tmp_path / "f.gguf", layout) as writer:
        writer.begin(layout.tensors[0])
        for _ in range(5):
            writer.write(bytes(range(24)))
    assert synced == [64 + 48, 64 + 96]  # the head is 64 bytes
    with GgufFile.open(tmp_path / "f.gguf") as file:
        assert file.raw("a").tobytes() == bytes(range(24)) * 5


def write_first(path: Path, layout: Layout, size: int) -> None:
    with GgufWriter(path, layout) as writer:
        writer.begin(layout.tensors[0])
        writer.write(bytes(size))
        writer.begin(layout.tensors[1])


def test_wrong_byte_counts_leave_no_file(tmp_path: Path) -> None:
    layout = lay_out({}, [TensorPlan(name, (3,), BlockType.F32) for name in "ab"])
    for size in (11, 12, 13):
        with pytest.raises(FormatError, match="bytes were written where the layout has"):
            write_first(tmp_path / "f.gguf", layout, size)
    assert list(tmp_path.iterdir()) == []


def test_unholdable_values(tmp_path: Path) -> None:
    for value in (1 << 64, [1, "a"], {"a": 1}, None, np.zeros(2, np.complex64), [None]):
        with pytest.raises(FormatError):
            write_gguf(tmp_path / "f.gguf", {"key": value}, {})
    with pytest.raises(FormatError, match="power of two"):
        lay_out({"general.alignment": 24}, [])
    with pytest.raises(FormatError, match="33 elements"):
        lay_out({}, [TensorPlan("a", (33,), BlockType.Q8_0)])
