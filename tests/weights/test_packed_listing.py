"""What the folder of packed weights holds, and clearing it: exactly what is its own goes."""

import json
import os

import pytest

from muser.weights.packed_file import PAGE
from muser.weights.packed_listing import clear, items, verified


@pytest.fixture
def packed(kept):
    """The folder, its file, and the model of it."""
    tensors, folder, take = kept
    take()
    (file,) = folder.glob("*.packed")
    return folder, file, tensors.origin.path


def state(folder):
    (item,) = items(folder)
    return item.state


def test_a_file_in_use(packed):
    folder, file, model = packed
    (item,) = items(folder)
    assert (item.path, item.model, item.size) == (file, model, file.stat().st_size)
    assert (item.fault, item.stale, item.state) == (None, None, "in use")


def lose_model(file, model):
    model.unlink()


def change_model(file, model):
    model.write_bytes(b"other")
    os.utime(model, ns=(1, 1))


def make_older(file, model):
    """By a Muser of another layout; its head ended with a space, not with a line feed."""
    head, rest = file.read_bytes()[:PAGE], file.read_bytes()[PAGE:]
    older = json.dumps({**json.loads(head), "file": 1}).encode()
    file.write_bytes(older + b" " * (PAGE - len(older)) + b"\xff\xfe" + rest)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lose_model, "stale: its model is gone from there"),
        (change_model, "stale: another file has its model's place"),
        (make_older, "stale: made for another version of Muser"),
    ],
)
def test_what_nobody_will_ask_for(packed, change, said):
    folder, file, model = packed
    change(file, model)
    (item,) = items(folder)
    assert (item.fault, item.stale) == (None, said)
    assert verified(item) == item


def cut(file):
    os.truncate(file, 3 * PAGE)


def cut_record(file):
    os.truncate(file, file.stat().st_size - 5)


def rename(file):
    file.rename(file.with_name("0" * 32 + ".packed"))


def nest(file):
    file.write_bytes(b"[" * 100_000)


def no_object(file):
    file.write_bytes(b"[]\n")


@pytest.mark.parametrize("harm", [cut, cut_record, rename, nest, no_object])
def test_what_is_wrong_is_said(packed, harm):
    folder, file, _ = packed
    harm(file)
    assert state(folder).startswith("damaged: ")


def test_a_file_that_is_not_used(packed):
    folder, file, _ = packed
    file.chmod(0o666)
    assert state(folder) == "not used: it can be written by every user"


def test_a_model_that_is_no_longer_the_one(packed):
    """Its state is that of the file that was packed, its bytes are no model at all."""
    folder, _, _ = packed
    (item,) = items(folder)
    assert verified(item).state == "of another model: the file has other tensors by now"


def test_unfinished_files_are_listed_and_cleared_and_all_else_is_left(packed, tmp_path):
    folder, file, _ = packed
    (folder / ".packing-abcd_123").write_bytes(b"left behind")
    assert [item.state for item in items(folder)].count(
        "unfinished: being packed now, or left behind"
    ) == 1
    (tmp_path / "precious").write_text("precious")
    (folder / ("3" * 32 + ".packed")).symlink_to(tmp_path / "precious")
    (folder / ("4" * 32 + ".packed")).mkdir()
    others = ("mine.packed", "0" * 31 + ".packed", "A" * 32 + ".packed", ".packing-abc", "x.note")
    for name in others:
        (folder / name).write_text("another's")
    size = file.stat().st_size
    count, removed = clear(folder)
    assert count == 2
    assert removed >= size + len("left behind")
    assert {path.name for path in folder.iterdir()} == {*others, "4" * 32 + ".packed", ".lock"}
    assert (tmp_path / "precious").read_text() == "precious"


def test_no_folder(tmp_path):
    assert items(tmp_path / "away") == ()
    assert clear(tmp_path / "away") == (0, 0)
    assert not (tmp_path / "away").exists()
