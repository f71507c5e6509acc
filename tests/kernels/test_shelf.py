"""The shelf: damage is found and repaired, a folder that cannot be used is no obstacle."""

import errno
import hashlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from muser.errors import DeviceError
from muser.kernels import Shelf
from muser.kernels import shelf as shelves
from muser.kernels.about import CONTRACT, About, read, written

ABOUT = About("c", CONTRACT, "cc 1.0", "x86_64", "-O3", "ab" * 32)


class Builder:
    """Counts how often it is asked; writes `text`."""

    def __init__(self, text=b"library"):
        self.text, self.times = text, 0

    def __call__(self, path):
        self.times += 1
        path.write_bytes(self.text)


def take(shelf, key, build):
    return shelf.take(key, build, ABOUT)


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / "shelf")


def test_built_once(shelf):
    build = Builder()
    first, second = take(shelf, "key", build), take(shelf, "key", build)
    assert first == second
    assert build.times == 1
    assert first.sha256 == hashlib.sha256(b"library").hexdigest()


def test_keys_do_not_meet(shelf):
    one, two = take(shelf, "one", Builder(b"1")), take(shelf, "two", Builder(b"2"))
    assert one.path.read_bytes() + two.path.read_bytes() == b"12"


@pytest.mark.parametrize("damage", [b"", b"librarx", b"library and more"])
def test_damaged_entry_is_built_again_with_a_warning(shelf, caplog, damage):
    path = take(shelf, "key", Builder()).path
    path.write_bytes(damage)
    build = Builder()
    with caplog.at_level(logging.WARNING):
        assert take(shelf, "key", build).path.read_bytes() == b"library"
    assert build.times == 1
    assert caplog.messages == [f"{path} does not match its hash; it is built again."]


def test_a_record_that_is_no_text_means_damage(shelf, caplog):
    path = take(shelf, "key", Builder()).path
    path.with_suffix(".json").write_bytes(b"\xff\xfe")
    build = Builder()
    with caplog.at_level(logging.WARNING):
        take(shelf, "key", build)
    assert build.times == 1
    assert "is built again" in caplog.text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_plain_file_is_never_read(shelf):
    path = take(shelf, "key", Builder()).path
    for make in (lambda: path.symlink_to("/dev/zero"), lambda: os.mkfifo(path)):
        path.unlink()
        make()
        shelved = take(shelf, "key", Builder())
        assert shelved.path.read_bytes() == shelved.data == b"library"


@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_a_folder_in_the_way_is_gone_round(shelf, caplog, suffix):
    path = take(shelf, "key", Builder()).path.with_suffix(suffix)
    path.unlink()
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        shelved = take(shelf, "key", Builder())
    assert (shelved.path, shelved.data, shelf.keeps) == (None, b"library", False)
    assert "compiled for this run only" in caplog.text
    assert list(shelf.folder.glob(".*.part")) == []


def test_a_note_that_cannot_be_kept_is_said_and_no_more(shelf, caplog):
    take(shelf, "key", Builder())
    (shelf.folder / "name.note").mkdir()
    with caplog.at_level(logging.WARNING):
        shelf.remember("name", "word")
    assert "cannot be noted" in caplog.text
    assert (shelf.note("name"), Shelf(shelf.folder).note("name")) == ("word", None)


def test_missing_record_means_missing_entry(shelf):
    path = take(shelf, "key", Builder()).path
    path.with_suffix(".json").unlink()
    build = Builder()
    take(shelf, "key", build)
    assert build.times == 1


def test_nothing_half_built_stays(shelf):
    def fail(path):
        path.write_bytes(b"half")
        raise DeviceError("It broke.", "Repair it.")

    with pytest.raises(DeviceError):
        take(shelf, "key", fail)
    assert [entry.name for entry in shelf.folder.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_made(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    shelf = Shelf(tmp_path / "file" / "shelf")
    with caplog.at_level(logging.WARNING):
        shelved = take(shelf, "key", Builder())
    assert (shelved.path, shelved.data, shelf.keeps) == (None, b"library", False)
    assert "compiled for this run only" in caplog.text
    shelf.remember("note", "word")
    assert shelf.note("note") == "word"


def test_notes(shelf):
    assert shelf.note("absent") is None
    shelf.remember("name", "word")
    assert shelf.note("name") == "word"


def test_what_an_entry_was_made_from_stands_beside_it(shelf):
    shelved = take(shelf, "key", Builder())
    assert read(shelved.path.with_suffix(".json").read_bytes()) == (shelved.sha256, ABOUT)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps({"sha256": 1}).encode(),
        written(ABOUT, "x").replace('"c"', "7").encode(),
    ],
)
def test_a_damaged_record_means_damage(shelf, caplog, damage):
    path = take(shelf, "key", Builder()).path
    path.with_suffix(".json").write_bytes(damage)
    build = Builder()
    with caplog.at_level(logging.WARNING):
        take(shelf, "key", build)
    assert build.times == 1
    assert "is built again" in caplog.text
    assert read(path.with_suffix(".json").read_bytes())[1] == ABOUT


needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away"
)


@needs_root
@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_an_entry_of_another_user_is_built_again(shelf, caplog, suffix):
    path = take(shelf, "key", Builder(b"theirs")).path
    os.chown(path.with_suffix(suffix), 4711, -1)
    build = Builder()
    with caplog.at_level(logging.WARNING):
        shelved = take(shelf, "key", build)
    assert (build.times, shelved.data) == (1, b"library")
    assert "belongs to another user (4711); it is built again" in caplog.text
    assert path.with_suffix(suffix).stat().st_uid == os.geteuid()


@needs_owners
def test_an_entry_that_everybody_can_write_is_built_again(shelf, caplog):
    path = take(shelf, "key", Builder()).path
    path.chmod(0o777)
    build = Builder()
    with caplog.at_level(logging.WARNING):
        take(shelf, "key", build)
    assert build.times == 1
    assert "can be written by every user; it is built again" in caplog.text
    assert path.stat().st_mode & 0o777 == 0o755


@needs_owners
def test_a_folder_that_everybody_can_write_is_not_used(shelf, caplog):
    take(shelf, "key", Builder(b"theirs"))
    shelf.remember("name", "passed")
    before = sorted(shelf.folder.iterdir())
    shelf.folder.chmod(0o1777)
    build, fresh = Builder(), Shelf(shelf.folder)
    with caplog.at_level(logging.WARNING):
        shelved = take(fresh, "key", build)
    assert (shelved.path, shelved.data, build.times) == (None, b"library", 1)
    assert "can be written by every user, so nothing in it is used" in caplog.text
    assert fresh.note("name") is None
    fresh.remember("other", "word")
    assert sorted(shelf.folder.iterdir()) == before


@needs_root
def test_a_folder_of_another_user_is_not_used(shelf, caplog):
    take(shelf, "key", Builder(b"theirs"))
    os.chown(shelf.folder, 4711, -1)
    with caplog.at_level(logging.WARNING):
        assert take(Shelf(shelf.folder), "key", Builder()).data == b"library"
    assert caplog.text.count("belongs to another user (4711), so nothing in it is used") == 1


@needs_owners
def test_the_folder_is_made_for_its_owner_alone(shelf):
    take(shelf, "key", Builder())
    assert shelf.folder.stat().st_mode & 0o777 == 0o700


def test_a_full_disk(shelf, monkeypatch, caplog):
    """The library that was just compiled serves this run; nothing half written stays."""

    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shelves.os, "replace", full)
    build = Builder()
    with caplog.at_level(logging.WARNING):
        shelved = take(shelf, "key", build)
    assert (shelved.path, shelved.data, build.times) == (None, b"library", 1)
    assert f"cannot take a library ({os.strerror(errno.ENOSPC)})" in caplog.text
    assert [entry.name for entry in shelf.folder.iterdir()] == [".lock"]


def test_a_system_without_locks(shelf, monkeypatch):
    def refuse(path, told, patience):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(shelves, "held", refuse)
    assert take(shelf, "key", Builder()).path.read_bytes() == b"library"


TAKE = """
import logging, sys, time
from pathlib import Path
from muser.kernels import Shelf
from muser.kernels import shelf as shelves
from muser.kernels.about import About
logging.basicConfig(level=logging.INFO, format="%(message)s")
shelves.PATIENCE_SECONDS = 0.0
shelf = Path(sys.argv[1])
def build(path):
    print("building", flush=True)
    path.write_bytes(sys.stdin.buffer.readline())
shelved = Shelf(shelf).take("key", build, About("c", "exact-0", "cc", "x", "-O3", "s"))
print(shelved.data.decode(), end="", flush=True)
"""


def test_two_processes_at_once_build_once(shelf):
    start = partial(
        subprocess.Popen,
        [sys.executable, "-c", TAKE, str(shelf.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with start() as first:
        assert first.stdout.readline() == b"building\n"
        with start() as second:
            waiting = second.stderr.readline().decode()
            assert waiting == (
                f"Waiting for process {first.pid}, which compiles kernels into {shelf.folder}.\n"
            )
            first.stdin.write(b"once\n")
            first.stdin.close()
            assert first.stdout.read() == b"once\n"
            assert second.stdout.read() == b"once\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert sorted(path.suffix for path in shelf.folder.glob("key*")) == [".json", ".so"]


def test_a_builder_that_dies_leaves_the_next_one_free(shelf):
    with subprocess.Popen(
        [sys.executable, "-c", TAKE, str(shelf.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as first:
        assert first.stdout.readline() == b"building\n"
        first.kill()
    assert take(shelf, "key", Builder()).path.read_bytes() == b"library"


def test_no_reader_meets_a_torn_file(shelf, monkeypatch):
    """At every rename, what is already under its name is whole."""
    seen, rename = [], os.replace

    def watch(source, target):
        seen.append((Path(target).suffix, Path(source).read_bytes()))
        rename(source, target)

    monkeypatch.setattr(shelves.os, "replace", watch)
    shelved = take(shelf, "key", Builder(b"x" * 100_000))
    assert seen == [
        (".json", written(ABOUT, shelved.sha256).encode()),
        (".so", b"x" * 100_000),
    ]


def test_other_origins_do_not_read_as_equal():
    assert read(written(replace(ABOUT, isa="avx2"), "s").encode())[1] != ABOUT
