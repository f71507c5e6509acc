"""The shelf: damage is found and repaired, a folder that cannot be written is no obstacle."""

import hashlib
import logging
import os

import pytest

from muser.errors import DeviceError
from muser.kernels import Shelf


class Builder:
    """Counts how often it is asked; writes `text`."""

    def __init__(self, text=b"library"):
        self.text, self.times = text, 0

    def __call__(self, path):
        self.times += 1
        path.write_bytes(self.text)


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / "shelf")


def test_built_once(shelf):
    build = Builder()
    first, second = shelf.take("key", build), shelf.take("key", build)
    assert first == second
    assert build.times == 1
    assert first.sha256 == hashlib.sha256(b"library").hexdigest()


def test_keys_do_not_meet(shelf):
    one, two = shelf.take("one", Builder(b"1")), shelf.take("two", Builder(b"2"))
    assert one.path.read_bytes() + two.path.read_bytes() == b"12"


@pytest.mark.parametrize("damage", [b"", b"librarx", b"library and more"])
def test_damaged_entry_is_built_again_with_a_warning(shelf, caplog, damage):
    path = shelf.take("key", Builder()).path
    path.write_bytes(damage)
    build = Builder()
    with caplog.at_level(logging.WARNING):
        assert shelf.take("key", build).path.read_bytes() == b"library"
    assert build.times == 1
    assert "does not match its hash" in caplog.text


def test_stamp_that_is_no_text_means_damage(shelf, caplog):
    path = shelf.take("key", Builder()).path
    path.with_suffix(".sha256").write_bytes(b"\xff\xfe")
    build = Builder()
    with caplog.at_level(logging.WARNING):
        shelf.take("key", build)
    assert build.times == 1
    assert "is built again" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_plain_file_is_never_read(shelf):
    path = shelf.take("key", Builder()).path
    for make in (lambda: path.symlink_to("/dev/zero"), lambda: os.mkfifo(path)):
        path.unlink()
        make()
        assert shelf.take("key", Builder()).path.read_bytes() == b"library"


@pytest.mark.parametrize("suffix", [".so", ".sha256"])
def test_a_folder_in_the_way_is_gone_round(shelf, caplog, suffix):
    path = shelf.take("key", Builder()).path.with_suffix(suffix)
    path.unlink()
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        shelved = shelf.take("key", Builder())
    assert shelved.path.read_bytes() == b"library"
    assert "compiled for this run only" in caplog.text
    assert [entry.name for entry in shelf.folder.iterdir() if entry.name.startswith(".")] == []


def test_a_note_that_cannot_be_kept_is_said_and_no_more(shelf, caplog):
    shelf.take("key", Builder())
    (shelf.folder / "name.note").mkdir()
    with caplog.at_level(logging.WARNING):
        shelf.remember("name", "word")
    assert "cannot be noted" in caplog.text
    assert shelf.note("name") is None


def test_missing_stamp_means_missing_entry(shelf):
    path = shelf.take("key", Builder()).path
    path.with_suffix(".sha256").unlink()
    build = Builder()
    shelf.take("key", build)
    assert build.times == 1


def test_nothing_half_built_stays(shelf):
    def fail(path):
        path.write_bytes(b"half")
        raise DeviceError("It broke.", "Repair it.")

    with pytest.raises(DeviceError):
        shelf.take("key", fail)
    assert list(shelf.folder.iterdir()) == []


def test_unwritable_folder_uses_a_temporary_one(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    shelf = Shelf(tmp_path / "file" / "shelf")
    with caplog.at_level(logging.WARNING):
        shelved = shelf.take("key", Builder())
    assert shelved.path.read_bytes() == b"library"
    assert "compiled for this run only" in caplog.text
    shelf.remember("note", "word")
    assert shelf.note("note") == "word"


def test_notes(shelf):
    assert shelf.note("absent") is None
    shelf.remember("name", "word")
    assert shelf.note("name") == "word"
