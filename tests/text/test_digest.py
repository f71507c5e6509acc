"""The digest of tokenizer metadata against one packed item by item."""

import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muser.formats import GgufFile
from muser.text import Tokenizer
from muser.text.digest import metadata_digest
from muser.text.strings import joined, tagged
from tests.text.vocabularies import vocabulary_metadata, write_vocabulary

FORMATS = {
    np.dtype("u1"): (0, "<BB"),
    np.dtype("i1"): (1, "<Bb"),
    np.dtype("u2"): (2, "<BH"),
    np.dtype("i2"): (3, "<Bh"),
    np.dtype("u4"): (4, "<BI"),
    np.dtype("i4"): (5, "<Bi"),
    np.dtype("u8"): (6, "<BQ"),
    np.dtype("i8"): (7, "<Bq"),
    np.dtype("f4"): (8, "<Bf"),
    np.dtype("f8"): (9, "<Bd"),
    np.dtype("?"): (10, "<B?"),
}


def packed(value: Any) -> bytes:
    """A value whose Python type says its tag: NumPy scalars, str, bool, lists."""
    if isinstance(value, str):
        raw = value.encode()
        return struct.pack("<BQ", 11, len(raw)) + raw
    if isinstance(value, list | np.ndarray):
        return struct.pack("<BQ", 12, len(value)) + b"".join(packed(item) for item in value)
    tag, form = FORMATS[np.asarray(value).dtype]
    return struct.pack(form, tag, np.asarray(value).item())


def by_item(metadata: dict[str, Any]) -> str:
    whole = b"muser.gguf-tokenizer-metadata.v1\0"
    for key in sorted(metadata):
        if key.startswith("tokenizer.") and key != "tokenizer.chat_template":
            whole += struct.pack("<Q", len(key)) + key.encode() + packed(metadata[key])
    return sha256(whole).hexdigest()


@pytest.fixture
def metadata() -> dict[str, Any]:
    given = vocabulary_metadata(
        "llama4", ("a b", "Ġ ab"), bos_token_id=np.uint32(1), padding_token_id=np.int64(-1)
    )
    numbers = {f"tokenizer.{kind}": np.arange(3).astype(kind) for kind in FORMATS}
    scalars = {f"tokenizer.one.{kind}": np.ones(1, kind)[0] for kind in FORMATS if kind.kind != "b"}
    flags = {"tokenizer.flag": np.True_, "tokenizer.none": np.zeros(0, np.int32)}
    return {**given, **numbers, **scalars, **flags, "general.name": "left out"}


def test_equals_packing_item_by_item(metadata: dict[str, Any]) -> None:
    assert metadata_digest(metadata) == by_item(metadata)


def test_the_file_has_the_same_digest(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = tmp_path / "vocabulary.gguf"
    write_vocabulary(path, {**metadata, "tokenizer.chat_template": "left out"})
    with GgufFile.open(path) as file:
        assert metadata_digest(file.metadata) == by_item(metadata)


def test_every_key_counts_but_the_template(metadata: dict[str, Any]) -> None:
    first = metadata_digest(metadata)
    assert metadata_digest({**metadata, "tokenizer.chat_template": "x"}) == first
    assert metadata_digest({**metadata, "general.name": "y"}) == first
    assert metadata_digest({**metadata, "tokenizer.ggml.pre": "gpt-4o"}) != first
    assert metadata_digest({**metadata, "tokenizer.flag": np.False_}) != first
    assert metadata_digest({**metadata, "tokenizer.one.u4": np.int32(1)}) != first


@pytest.mark.parametrize("items", [["a"], ["", "é", "", "b c\n", "x" * 300], ["", ""]])
def test_arrays_of_a_file_and_lists_are_taken_alike(tmp_path: Path, items: list[str]) -> None:
    path = tmp_path / "strings.gguf"
    write_vocabulary(path, {"tokenizer.list": items})
    with GgufFile.open(path) as file:
        strings = file.metadata["tokenizer.list"]
        assert joined(strings) == joined(items) == "\n".join(items).encode()
        assert tagged(strings, 11) == tagged(items, 11)


def test_a_vocabulary_only_file_tokenizes(tmp_path: Path) -> None:
    given = vocabulary_metadata("llama4", ("a b", "Ġ ab"), bos_token_id=258)
    path = tmp_path / "vocabulary.gguf"
    write_vocabulary(path, given)
    with GgufFile.open(path) as file:
        assert not file.tensors
        made, plain = Tokenizer.from_metadata(file.metadata), Tokenizer.from_metadata(given)
    text = "ab ab<|im_end|>é\n"
    assert made.encode(text, special=True, bos=True) == plain.encode(text, special=True, bos=True)
    assert made.metadata_digest == plain.metadata_digest
    assert made.decode(made.encode(text)) == text
