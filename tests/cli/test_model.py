"""`muser model list` and `muser model show`; `synth` has a file of its own."""

import json
from pathlib import Path

import numpy as np
import pytest
from outcome import Command

from muser.formats import BlockType, PackedTensor, write_gguf
from muser.weights.catalogue import CATALOGUE


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A file with a known census: two F32 tensors and one Q8_0, 34 bytes a block."""
    tensors = {
        "a": PackedTensor((32,), BlockType.F32, np.zeros(128, np.uint8)),
        "b": PackedTensor((32,), BlockType.F32, np.zeros(128, np.uint8)),
        "c": PackedTensor((32, 4), BlockType.Q8_0, np.zeros(136, np.uint8)),
    }
    metadata = {
        "general.architecture": "other",
        "general.name": "Tiny",
        "other.context_length": 77,
        "other.pattern": [True, False],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [str(i) for i in range(20)],
        "tokenizer.chat_template": "x" * 100,
    }
    path = tmp_path / "tiny.gguf"
    write_gguf(path, metadata, tensors)
    return path


def test_show_tells_what_the_file_tells(command: Command, tiny: Path) -> None:
    outcome = command("model", "show", str(tiny), "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert json.loads(outcome.out) == {
        "file": {
            "path": str(tiny),
            "bytes": tiny.stat().st_size,
            "gguf version": 3,
            "architecture": "other",
            "name": "Tiny",
            "supported": "no: The architecture 'other' is not supported.",
        },
        "hyperparameters": {"context_length": 77, "pattern": [True, False]},
        "tokenizer": {
            "ggml.model": "gpt2",
            "ggml.tokens": "20 values",
            "chat_template": "100 characters",
        },
        "tensors": {
            "F32": "2 tensors, 256 bytes",
            "Q8_0": "1 tensor, 136 bytes",
            "all": "3 tensors, 392 bytes",
        },
    }


def test_show_gives_floats_of_their_own_width(command: Command, tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "other",
        "other.single": np.float32(1e-5),
        "other.double": np.float64(np.float32(1e-5)),
        "other.list": np.array([0.1, 1e9], np.float32),
        "other.whole": 3,
    }
    write_gguf(tmp_path / "x.gguf", metadata, {})
    told = command("model", "show", str(tmp_path / "x.gguf"), "--json").out
    assert '"single": 1e-05, "double": 9.999999747378752e-06' in told
    assert '"list": [0.1, 1000000000.0], "whole": 3' in told
    assert "  single  1e-05\n" in command("model", "show", str(tmp_path / "x.gguf")).out


def test_show_is_readable(command: Command, tiny: Path) -> None:
    lines = command("model", "show", str(tiny)).out.splitlines()
    assert "  architecture  other" in lines
    assert "  context_length  77" in lines
    assert "  all   3 tensors, 392 bytes" in lines


def test_what_a_file_says_is_json_and_drives_no_terminal(command: Command, tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "other",
        "general.name": "\x1b]0;mine\x07\nsupported yes",
        "other.nan": float("nan"),
        "other.list": np.array([1, np.inf]),
    }
    write_gguf(tmp_path / "odd.gguf", metadata, {})
    shown = command("model", "show", str(tmp_path / "odd.gguf"))
    assert shown.status == 0
    assert "  name          ␛]0;mine␇ supported yes\n" in shown.out
    told = command("model", "show", str(tmp_path / "odd.gguf"), "--json").out
    record = json.loads(told, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert record["hyperparameters"] == {"nan": "nan", "list": [1.0, "inf"]}
    assert record["file"]["name"] == metadata["general.name"]


def test_list_leaves_out_what_is_no_file(command: Command, tmp_path: Path) -> None:
    models = tmp_path / "home" / "models"
    (models / "folder.gguf").mkdir(parents=True)
    (models / "gone.gguf").symlink_to(tmp_path / "nothing")
    outcome = command("model", "list")
    assert (outcome.status, outcome.err) == (0, "")
    assert "folder.gguf" not in outcome.out
    assert "gone" not in outcome.out


def test_show_refuses_what_is_no_gguf(command: Command, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    outcome = command("model", "show", str(tmp_path / "x.gguf"))
    assert outcome.status == 3
    assert len(outcome.err.splitlines()) == 2


def test_list_shows_catalogue_and_strangers(command: Command, tmp_path: Path) -> None:
    lines = command("model", "list").out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "SIZE", "WHAT"]
    assert lines[1].startswith("smollm2-135m  not fetched  93 MB to fetch, 98 MB on disk    Smol")
    assert lines[2].startswith("gemma3-270m   not fetched  238 MB to fetch, 253 MB on disk  Gemma")
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    (models / "mine.gguf").write_bytes(bytes(2_000_000))
    with (models / CATALOGUE[0].file).open("wb") as handle:
        handle.truncate(CATALOGUE[0].size)
    lines = command("model", "list").out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["smollm2-135m", "here"],
        ["gemma3-270m", "not"],
        ["mine", "here"],
    ]
    assert " 98 MB on disk " in lines[1]
    assert lines[3].split()[2:] == ["2", "MB", "on", "disk", "mine.gguf"]
    assert lines[-1] == f"Models folder: {models}"
