"""The file of packed weights: nothing but what was put there is used, whatever became of it."""

import json
import logging
import os
from dataclasses import replace

import pytest

from muser.errors import FormatError
from muser.formats.mapped import MappedFile
from muser.weights.kept import VERIFIED, Kept
from muser.weights.packed_file import PAGE
from muser.weights.packing import pack
from muser.weights.panels import Packer
from tests.weights.sources import same


def test_a_kept_file_is_taken_again(kept, caplog):
    _, folder, take = kept
    with caplog.at_level(logging.INFO):
        first = take()
    assert "once for this model" in caplog.text
    assert "MB of memory" in caplog.text
    (file,) = folder.glob("*.packed")
    assert file.stat().st_mode & 0o077 == 0
    before = file.stat().st_mtime_ns, file.stat().st_ino
    caplog.clear()
    assert same(first, take())
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before
    assert caplog.text == ""
    head = json.loads(file.read_bytes()[:PAGE])
    assert [line[0] for line in head["tensors"]] == ["w", "v"]


def shorten(file):
    os.truncate(file, file.stat().st_size - 1)


def spoil_head(file):
    flip(file, 5)


def flip(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def spoil_panel(file):
    flip(file, PAGE + 7)


def spoil_middle(file):
    """In neither the first nor the last panel of `w`."""
    flip(file, PAGE + 1100)


def spoil_floats(file):
    """In the middle of `v`, which no load packs again to compare."""
    flip(file, 2 * PAGE + 5000)


def spoil_digest(file):
    data = file.read_bytes()
    at = data.rindex(b'"]')
    file.write_bytes(data[: at - 2] + b"zz" + data[at:])


def cut_record(file):
    os.truncate(file, file.stat().st_size - 30)


def lose_record(file):
    os.truncate(file, file.read_bytes().rindex(b'{"model"'))


def open_to_all(file):
    file.chmod(0o666)


def put_pipe(file):
    file.unlink()
    os.mkfifo(file)


def put_link(file):
    target = file.with_name("elsewhere")
    file.rename(target)
    file.symlink_to(target)


@pytest.mark.parametrize("harm", [put_pipe, put_link])
def test_what_is_no_plain_file_is_said_and_replaced(kept, caplog, harm):
    _, folder, take = kept
    first = {name: data.copy() for name, data in take().items()}
    (file,) = folder.glob("*.packed")
    harm(file)
    caplog.clear()
    assert same(first, take())
    assert str(file) in caplog.text
    assert not file.is_symlink()
    assert file.is_file()


HARMS = (
    shorten, spoil_head, spoil_panel, spoil_middle, spoil_floats, spoil_digest, cut_record,
    lose_record, open_to_all,
)  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_file_is_made_again_and_said_once(kept, caplog, harm):
    _, folder, take = kept
    first = {name: data.copy() for name, data in take().items()}
    (file,) = folder.glob("*.packed")
    harm(file)
    caplog.clear()
    assert same(first, take())
    assert caplog.text.count("made again") == 1
    caplog.clear()
    assert same(first, take())
    assert caplog.text == ""


def test_where_the_harmed_bytes_are(kept):
    """`HARMS` says of some which tensor they are in."""
    _, folder, take = kept
    packed = take()
    (file,) = folder.glob("*.packed")
    assert packed["w"].size == 3 * 960
    assert packed["v"].size > 5000
    assert file.read_bytes()[PAGE : PAGE + 3 * 960] == packed["w"].tobytes()
    assert file.read_bytes()[2 * PAGE :].startswith(packed["v"].tobytes())


@pytest.fixture
def looks(monkeypatch):
    """Counts how often a file is verified."""
    seen, verify = [], Kept._verify

    def counted(self, record, kept):
        seen.append(self.path)
        verify(self, record, kept)

    monkeypatch.setattr(Kept, "_verify", counted)
    return seen


def touch(folder, tensors):
    """The same bytes in another state."""
    (file,) = folder.glob("*.packed")
    os.utime(file, ns=(1, 1))


def forget(folder, tensors):
    tensors.memory.words.clear()


def remember_nothing(folder, tensors):
    tensors.memory = None


def change_model(folder, tensors):
    """Its time of modification is put back, which the other time of change tells."""
    path = tensors.origin.path
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    tensors.origin = MappedFile(path)


@pytest.mark.parametrize("change", [touch, forget, remember_nothing, change_model])
def test_each_state_is_verified_once(kept, looks, change):
    tensors, folder, take = kept
    first = take()
    assert set(tensors.memory.words.values()) == {VERIFIED}
    take()
    assert len(looks) == 1
    change(folder, tensors)
    assert same(first, take())
    assert len(looks) == 2
    take()
    assert len(looks) == 2 + (tensors.memory is None)


def test_each_library_verifies(kept, looks, library):
    tensors, folder, take = kept
    take()
    pack(replace(library, sha256="another"), tensors, ["w", "v"], folder, 1)
    assert len(looks) == 2


@pytest.mark.parametrize("name", ["w", "v"])
def test_other_weights_under_the_same_size_and_time(kept, caplog, name):
    tensors, folder, take = kept
    before = take()
    raw = tensors.tensors[name].raw.copy()
    raw[-1] ^= 1  # in no first panel
    tensors.tensors[name] = replace(tensors.tensors[name], raw=raw)
    change_model(folder, tensors)
    after = take()
    assert f"{name} was other weights; it is made again" in caplog.text
    assert not same(before, after)
    assert same(after, take())


def test_a_model_that_changes_while_it_is_packed(kept, monkeypatch):
    tensors, folder, take = kept
    pieces = Packer.pieces

    def late(self, source, panels):
        os.utime(tensors.origin.path, ns=(1, 1))
        return pieces(self, source, panels)

    monkeypatch.setattr(Packer, "pieces", late)
    with pytest.raises(FormatError, match="has changed"):
        take()
    assert list(folder.glob("*packed")) == []
