"""Where a library is run from: its file, memory, a temporary folder; and what is said of it."""

import ctypes
import errno
import hashlib
import logging
import os
import shutil
import subprocess
import sys

import pytest

from muser.errors import DeviceError
from muser.kernels import find_compiler, opening
from muser.kernels.opening import open_library
from muser.kernels.shelf import Shelved

needs_memory_files = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="this system has no files in memory"
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Makes a library whose function `answer` gives a number."""

    def build(number):
        folder = tmp_path_factory.mktemp("answer")
        (folder / "a.c").write_text(f"int answer(void) {{ return {number}; }}\n")
        path = folder / "answer.so"
        command = (*find_compiler().command, "-shared", "-fPIC", "a.c", "-o", path.name)
        subprocess.run(command, cwd=folder, check=True)
        data = path.read_bytes()
        return Shelved(path, hashlib.sha256(data).hexdigest(), data)

    return build


@pytest.fixture(scope="module")
def answer(compiled):
    return compiled(42)


@pytest.fixture
def noexec(answer, monkeypatch):
    """Loading from the library's own folder fails as from one mounted without execution."""
    load = ctypes.CDLL

    def refuse(name):
        if name.startswith(str(answer.path.parent)):
            raise OSError(f"{name}: failed to map segment from shared object")
        return load(name)

    monkeypatch.setattr(opening.ctypes, "CDLL", refuse)
    return answer


def test_from_its_own_file(answer, caplog):
    assert open_library(answer).answer() == 42
    assert caplog.text == ""


@needs_memory_files
def test_a_folder_without_execution(noexec, caplog):
    with caplog.at_level(logging.WARNING):
        assert open_library(noexec).answer() == 42
    assert caplog.messages == [
        f"{noexec.path.parent} cannot be executed (failed to map segment from shared object);"
        " its libraries run from memory."
    ]


def test_without_files_in_memory_a_temporary_folder_serves(noexec, monkeypatch, caplog):
    monkeypatch.delattr(opening.os, "memfd_create", raising=False)
    with caplog.at_level(logging.WARNING):
        assert open_library(noexec).answer() == 42
    assert f"its libraries run from {opening.tempfile.gettempdir()}." in caplog.text


@needs_memory_files
def test_two_libraries_from_memory_are_two(answer, compiled):
    """The loader takes a name that it knows for the library that had it."""
    handles = [opening._from_memory(shelved.data) for shelved in (answer, compiled(43))]
    assert [handle.answer() for handle in handles] == [42, 43]


@needs_memory_files
def test_a_system_that_does_not_know_the_second_flag(noexec, monkeypatch):
    make = os.memfd_create

    def older(name, flags):
        if flags & opening.MFD_EXEC:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return make(name, flags)

    monkeypatch.setattr(opening.os, "memfd_create", older)
    assert opening._from_memory(noexec.data).answer() == 42


def test_what_no_folder_took_runs_without_a_further_word(answer, caplog):
    assert open_library(Shelved(None, answer.sha256, answer.data)).answer() == 42
    assert caplog.text == ""


def test_what_is_no_library_is_refused(tmp_path, caplog):
    path = tmp_path / "library.so"
    path.write_bytes(b"not a library")
    with pytest.raises(DeviceError, match=r"library.so cannot be loaded: .*(invalid|short)"):
        open_library(Shelved(path, "00", b"not a library"))
    assert caplog.text == ""


LOAD = """
import hashlib, logging, sys
from pathlib import Path
from muser.kernels.opening import open_library
from muser.kernels.shelf import Shelved
logging.basicConfig(format="%(message)s")
data = Path(sys.argv[1]).read_bytes()
path = Path(sys.argv[2], "answer.so")
path.write_bytes(data)
print(open_library(Shelved(path, "", data)).answer())
"""


def test_a_real_mount_without_execution(answer, tmp_path):
    """In a mount namespace that ends with its process, where this system lets one be made."""
    inside = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o noexec none "$0" && exec "$@"']
    if not shutil.which("unshare") or subprocess.run([*inside, str(tmp_path), "true"]).returncode:
        pytest.skip("this system does not let tests mount")
    command = [sys.executable, "-c", LOAD, str(answer.path), str(tmp_path)]
    done = subprocess.run([*inside, str(tmp_path), *command], capture_output=True, text=True)
    assert done.stdout == "42\n", done.stderr
    assert done.stderr.startswith(f"{tmp_path} cannot be executed (")
