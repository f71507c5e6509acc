"""What a shelf holds, and clearing it: exactly what is its own goes."""

import os

import pytest

from muser.kernels import Shelf
from muser.kernels.about import CONTRACT, About
from muser.kernels.listing import clear, distrust, items

KEYS = ("0" * 32, "1" * 32, "2" * 32)


@pytest.fixture
def shelf(tmp_path):
    """Three libraries and a note."""
    made = Shelf(tmp_path / "shelf")
    for key, isa in zip(KEYS, ("c", "avx2", "avx512"), strict=True):
        about = About(isa, CONTRACT, "cc 1.0\nx86_64", "x86_64", "-O3", "ab" * 32)
        made.take(key, lambda path, isa=isa: path.write_text(isa), about)
    made.remember("conformance-" + "0" * 32 + "-" + "1" * 16, "passed")
    return made


def test_each_is_verified_now(shelf):
    found = items(shelf.folder)
    assert [(item.about.isa, item.fault) for item in found] == [
        ("avx2", None),
        ("avx512", None),
        ("c", None),
    ]
    assert [item.size for item in found] == [4, 6, 1]
    assert found[0].sha256 == shelf.take(KEYS[1], None, None).sha256


def test_what_is_wrong_is_said(shelf):
    (shelf.folder / f"{KEYS[0]}.so").write_bytes(b"x")
    (shelf.folder / f"{KEYS[1]}.json").unlink()
    (shelf.folder / f"{KEYS[2]}.so").chmod(0o777)
    faults = {item.key: item.fault for item in items(shelf.folder)}
    assert faults[KEYS[0]] == "corrupt: its hash is another"
    assert faults[KEYS[1]] == "corrupt: it has no record"
    if hasattr(os, "geteuid"):
        assert faults[KEYS[2]] == "not used: it can be written by every user"


@pytest.mark.parametrize("damage", [b"", b"{}", b"[" * 100_000, b"\xff"])
def test_a_record_that_is_none(shelf, damage):
    (shelf.folder / f"{KEYS[0]}.json").write_bytes(damage)
    fault = {item.key: item.fault for item in items(shelf.folder)}[KEYS[0]]
    assert fault.startswith("corrupt: ")


def test_an_empty_shelf(tmp_path):
    assert items(tmp_path / "away") == ()
    assert clear(tmp_path / "away") == (0, 0)
    assert not (tmp_path / "away").exists()
    (tmp_path / "file").touch()
    assert items(tmp_path / "file") == ()


def test_clearing_leaves_nothing_of_its_own_and_all_else(shelf, tmp_path):
    folder = shelf.folder
    own = (f"{KEYS[0]}.sha256", ".abc_1234.part", f".{KEYS[0]}-abcd1234.so")
    for name in own:
        (folder / name).write_text("left behind")
    (tmp_path / "precious").write_text("precious")
    (folder / ("3" * 32 + ".so")).symlink_to(tmp_path / "precious")
    (folder / ("4" * 32 + ".so")).mkdir()
    others = ("notes.note", "mine.so", "0" * 31 + ".so", "A" * 32 + ".so", KEYS[0] + ".so.bak")
    for name in others:
        (folder / name).write_text("another's")
    count, size = clear(folder)
    assert count == 4
    assert size > 3 * len("left behind")
    left = {path.name for path in folder.iterdir()}
    assert left == {*others, "4" * 32 + ".so", ".lock"}
    assert (tmp_path / "precious").read_text() == "precious"
    assert items(folder) == ()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_folder_that_is_not_used(shelf, tmp_path):
    assert distrust(shelf.folder) is None
    assert distrust(tmp_path / "away") is None
    shelf.folder.chmod(0o777)
    assert distrust(shelf.folder) == "can be written by every user"
