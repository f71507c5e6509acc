"""A file that changes while it is open, and heads that are read piece by piece."""

import os
from array import array
from pathlib import Path

import numpy as np
import pytest

from muser.errors import FormatError, UsageError
from muser.formats import GgufFile, cursor, gguf_reader
from muser.formats.cursor import Cursor, MoreNeeded
from muser.formats.mapped import MappedFile
from tests.formats import gguf_bytes as gb


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.gguf"
    path.write_bytes(gb.small())
    return path


def settle(path: Path) -> None:
    """A time of modification that any later write changes, however coarse the clock is."""
    os.utime(path, ns=(1, 1))


def test_an_untouched_file_is_unchanged(path: Path) -> None:
    settle(path)
    with GgufFile.open(path) as file:
        path.read_bytes()
        file.verify_unchanged()


@pytest.mark.parametrize("length", [0, 1, 60])
def test_a_shortened_file_has_changed(path: Path, length: int) -> None:
    file = GgufFile.open(path)
    os.truncate(path, length)
    os.utime(path, ns=(1, 1))
    with pytest.raises(FormatError, match=f"{path} has changed since it was opened.*by renaming"):
        file.verify_unchanged()


def test_a_file_written_to_has_changed(path: Path) -> None:
    settle(path)
    file = GgufFile.open(path)
    with path.open("r+b") as other:
        other.seek(-1, os.SEEK_END)
        other.write(b"x")
    with pytest.raises(FormatError, match="has changed"):
        file.verify_unchanged()


@pytest.mark.skipif(os.name == "nt", reason="this system keeps names of open files")
def test_a_path_given_to_another_file_is_no_change(path: Path, tmp_path: Path) -> None:
    file = GgufFile.open(path)
    before = file.raw("weight").tolist()
    other = tmp_path / "other"
    other.write_bytes(b"another file")
    inode = path.stat().st_ino
    os.replace(other, path)
    assert file.opened.st_ino == inode != path.stat().st_ino
    file.verify_unchanged()
    assert file.raw("weight").tolist() == before


def test_a_file_shortened_while_it_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fstat = os.fstat

    def longer(handle: int) -> os.stat_result:
        about = list(fstat(handle))
        about[6] += 1 << 20
        return os.stat_result(about, {"st_mtime_ns": 1})

    with monkeypatch.context() as patch:
        patch.setattr("muser.formats.mapped.os.fstat", longer)
        with pytest.raises(FormatError, match="has changed since it was opened"):
            GgufFile.open(path)


def test_a_head_that_ends_early(path: Path) -> None:
    mapped = MappedFile(path)
    os.truncate(path, 10)
    assert bytes(mapped.head(10)) == b"GGUF" + gb.small()[4:10]
    with pytest.raises(FormatError, match="has changed"):
        mapped.head(11)


def test_the_metadata_are_a_copy(path: Path) -> None:
    """What was parsed stays as it was parsed, whatever becomes of the file."""
    file = GgufFile.open(path)
    os.truncate(path, 0)
    assert list(file.metadata["tokens"]) == ["a", "", "é"]


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened"):
        MappedFile(tmp_path)


@pytest.mark.parametrize("length", range(1, len(gb.small()), 7))
def test_a_head_read_piece_by_piece(
    path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    whole = GgufFile.open(path)
    monkeypatch.setattr(gguf_reader, "HEAD", length)
    monkeypatch.setattr(gguf_reader, "MAX_HEAD", 1 << 20)
    parts = GgufFile.open(path)
    assert parts.tensors == whole.tensors
    assert repr(dict(parts.metadata)) == repr(dict(whole.metadata))
    assert list(parts.metadata["tokens"]) == ["a", "", "é"]


def test_a_head_without_an_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_reader, "HEAD", 8)
    monkeypatch.setattr(gguf_reader, "MAX_HEAD", 64)
    with pytest.raises(FormatError, match="head is longer than 64 bytes"):
        GgufFile.open(path)


def strings(seed: int) -> list[bytes]:
    """Mostly short texts; some are empty, long, or hold zero bytes, if the seed is odd."""
    rng = np.random.default_rng(seed)
    made = [rng.bytes(int(n)).replace(b"\0", b"x") for n in rng.integers(1, 30, 300)]
    if seed % 2:
        for at in rng.integers(0, len(made), 3):
            made[at] = (b"", b"y" * 300, b"a\0\0\0\0\0\0\0\0b", b"\1" + bytes(7))[rng.integers(4)]
    return made


@pytest.mark.parametrize("window", [64, 333, 1 << 20])
@pytest.mark.parametrize("seed", range(40))
def test_strings_found_at_once_are_those_found_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int, window: int
) -> None:
    monkeypatch.setattr(cursor, "WINDOW", window)
    items, expected, at = strings(seed), array("Q"), 5
    for item in items:
        expected.append(at)
        at += 8 + len(item)
    data = b"begin" + b"".join(len(item).to_bytes(8, "little") + item for item in items) + b"end"
    reader = Cursor(memoryview(data), Path("x"), len(data))
    reader.at = 5
    assert reader.string_starts(len(items), "them") == expected
    assert reader.at == at
    if seed % 2 == 0:
        found = array("Q")
        cursor._short_strings(memoryview(data), 5, len(items), found)
        assert len(found) > 0


@pytest.mark.parametrize("cut", [1, 2, 9, 40])
def test_strings_behind_the_bytes_that_are_here(cut: int) -> None:
    item = (3).to_bytes(8, "little") + b"abc"
    data = item * 4
    short = memoryview(data)[: len(data) - cut]
    with pytest.raises(MoreNeeded):
        Cursor(short, Path("x"), len(data)).string_starts(4, "them")
    with pytest.raises(FormatError, match=r"passes the end|needs 32 bytes"):
        Cursor(short, Path("x"), len(short)).string_starts(4, "them")
