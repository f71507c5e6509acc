"""The folder of packed weights: one process packs at a time, and none of others is trusted."""

import errno
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from muser.formats.mapped import MappedFile
from muser.weights import packing
from muser.weights.panels import Packer
from tests.weights.sources import same


def test_one_process_packs_and_the_other_takes_it(kept, monkeypatch, caplog):
    """Locks are of open files, so that two threads are as two processes here."""
    _, folder, take = kept
    monkeypatch.setattr(packing, "PATIENCE_SECONDS", 0)
    begun, told, calls, pieces = Event(), Event(), [], Packer.pieces

    def slow(self, source, panels):
        calls.append(panels.name)
        begun.set()
        assert told.wait(60)
        return pieces(self, source, panels)

    def hear(record):
        if record.getMessage().startswith("Waiting for"):
            told.set()
        return True

    monkeypatch.setattr(Packer, "pieces", slow)
    caplog.handler.addFilter(hear)
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(2) as pool:
        first = pool.submit(take)
        assert begun.wait(60)
        second = pool.submit(take)
        assert same(first.result(), second.result())
    assert sorted(calls) == ["v", "w"]
    assert f"Waiting for process {os.getpid()}, which packs weights into {folder}." in caplog.text


def test_without_locks_it_is_packed_all_the_same(kept, monkeypatch):
    _, folder, take = kept

    def refuse(handle):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("muser.locking.try_lock", refuse)
    folder.mkdir()
    (folder / ".packing-abcd1234").touch()  # another process may be at it
    take()
    assert len(list(folder.glob("*.packed"))) == 1
    assert (folder / ".packing-abcd1234").exists()


def test_what_a_killed_process_left_goes(kept):
    _, folder, take = kept
    folder.mkdir()
    (folder / ".packing-abcd1234").touch()
    (folder / "mine").touch()
    take()
    assert {path.suffix for path in folder.iterdir() if path.name != ".lock"} == {".packed", ""}
    assert (folder / "mine").exists()


def give_to_all(folder):
    folder.chmod(0o777)


def give_to_another(folder):
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    os.chown(folder, 4711, -1)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
@pytest.mark.parametrize("give", [give_to_all, give_to_another])
def test_a_folder_of_others_is_not_used(kept, caplog, give):
    _, folder, take = kept
    first = {name: data.copy() for name, data in take().items()}
    (file,) = folder.glob("*.packed")
    file.unlink()
    give(folder)
    caplog.clear()
    assert same(first, take())
    (line,) = caplog.messages
    assert line.startswith(f"{folder} ")
    assert line.endswith("so nothing in it is used; 0 MB of memory hold them, at each load.")
    assert list(folder.glob("*packed*")) == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_file_of_another_is_made_again(kept, caplog):
    _, folder, take = kept
    first = {name: data.copy() for name, data in take().items()}
    (file,) = folder.glob("*.packed")
    give_to_another(file)
    assert same(first, take())
    assert "belongs to another user (4711); it is made again" in caplog.text


def test_another_model_file_gets_its_own(kept, tmp_path):
    tensors, folder, take = kept
    take()
    (tmp_path / "model.gguf").write_bytes(b"another model")
    tensors.origin = MappedFile(tmp_path / "model.gguf")
    take()
    assert len(list(folder.glob("*.packed"))) == 2


def test_a_folder_that_cannot_be_written_is_said_and_done_without(kept, caplog):
    _, folder, take = kept
    folder.write_text("no folder")
    packed = take()
    assert "memory hold them" in caplog.text
    assert packed["w"].size
    assert len(caplog.messages) == 1


def test_nothing_is_left_behind_by_a_failure(kept, monkeypatch):
    _, folder, take = kept

    def fail(self, source, panels):
        raise KeyboardInterrupt

    monkeypatch.setattr(Packer, "pieces", fail)
    with pytest.raises(KeyboardInterrupt):
        take()
    assert [path.name for path in folder.iterdir()] == [".lock"]
