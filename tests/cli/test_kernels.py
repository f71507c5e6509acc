"""`muser kernels`: what is listed, built and removed."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from outcome import Command

from muser import places
from muser.cli.kernels import age
from muser.formats import GgufFile, state_of
from muser.kernels import Shelf
from muser.kernels.about import CONTRACT, About
from muser.models.synth import synthesise
from muser.weights.packed_file import LAYOUT, PAGE, Plan, Record, about, digest
from muser.weights.panels import Panels

ABOUT = About("avx2", CONTRACT, "cc 12.2\nx86_64-linux-gnu", "x86_64", "-O3", "ab" * 32)


@pytest.fixture
def shelf(command: Command) -> Shelf:
    """A library in the home of `command`."""
    made = Shelf(places.libraries())
    made.take("0" * 32, lambda path: path.write_bytes(b"library"), ABOUT)
    return made


def test_an_empty_list(command: Command, tmp_path: Path) -> None:
    outcome = command("kernels", "list")
    home = tmp_path / "home"
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == (
        f"Libraries folder: {home / 'libraries'}\nPacked weights folder: {home / 'packed'}\n"
    )
    assert not home.exists()


def test_a_list(command: Command, shelf: Shelf) -> None:
    outcome = command("kernels", "list")
    head, row, gap, folder, _ = outcome.out.splitlines()
    assert head.split() == ["NAME", "CONTRACT", "COMPILER", "SIZE", "AGE", "STATE", "SHA-256"]
    sha256 = shelf.take("0" * 32, lambda path: None, ABOUT).sha256
    name, contract, cc, version, size, unit, *_, state, digest = row.split()
    assert (name, contract, f"{cc} {version}") == ("cpu-avx2", "exact-0", "cc 12.2")
    assert (size, unit, state, digest) == ("0", "kB", "verified", sha256)
    assert gap == ""
    assert folder == f"Libraries folder: {shelf.folder}"


def test_the_list_as_a_record(command: Command, shelf: Shelf) -> None:
    (shelf.folder / ("0" * 32 + ".so")).write_bytes(b"damaged")
    record = json.loads(command("kernels", "list", "--json").out)
    assert record["folder"] == str(shelf.folder)
    (library,) = record["libraries"]
    assert library.pop("age_s") >= 0
    assert len(library.pop("sha256")) == 64
    assert library == {
        "name": "cpu-avx2",
        "key": "0" * 32,
        "bytes": 7,
        "state": "corrupt: its hash is another",
        "isa": "avx2",
        "contract": CONTRACT,
        "compiler": ABOUT.compiler,
        "machine": "x86_64",
        "flags": "-O3",
        "source": "ab" * 32,
    }


def test_clear_counts(command: Command, shelf: Shelf) -> None:
    outcome = command("kernels", "clear")
    libraries, packed = outcome.out.splitlines()
    assert libraries.startswith("Removed 1 library, ")
    assert libraries.endswith(f" bytes in all, from {shelf.folder}")
    assert packed == f"Removed 0 packed files, 0 bytes in all, from {places.packed()}"
    again = command("kernels", "clear", "libraries").out
    assert again == f"Removed 0 libraries, 0 bytes in all, from {shelf.folder}\n"


@pytest.fixture
def packed(command: Command, tmp_path: Path) -> Path:
    """Weights of a model, packed in the home of `command` by no library in particular."""
    model = tmp_path / "model.gguf"
    synthesise(model, layers=1)
    with GgufFile.open(model) as file:
        name, info = next(iter(file.tensors.items()))
        plan = Plan.of((Panels(name, info.type.name, 2, 100),), about(file.opened))
        panels = np.arange(200, dtype=np.uint8)
        digests = {name: (digest(file.raw(name)), digest(panels))}
        record = Record(str(model), state_of(file.opened), digests)
    path = places.packed() / f"{plan.key}.packed"
    path.parent.mkdir(parents=True)
    data = plan.head + panels.tobytes()
    path.write_bytes(data + bytes(plan.size - len(data)) + record.written())
    return path


def test_packed_weights_are_listed(command: Command, packed: Path, tmp_path: Path) -> None:
    head, row, gap, _, folder = command("kernels", "list").out.splitlines()
    assert head.split() == ["PACKED", "FOR", "LAYOUT", "SIZE", "AGE", "STATE"]
    assert row.split()[0] == str(tmp_path / "model.gguf")
    assert row.endswith("  in use")
    assert gap == ""
    assert folder == f"Packed weights folder: {packed.parent}"
    record = json.loads(command("kernels", "list", "--json").out)
    assert record["packed_folder"] == str(packed.parent)
    (item,) = record["packed"]
    assert item.pop("age_s") >= 0
    assert item == {
        "file": packed.name,
        "model": str(tmp_path / "model.gguf"),
        "layout": LAYOUT,
        "bytes": packed.stat().st_size,
        "state": "in use",
    }


def test_all_bytes_are_verified(command: Command, packed: Path, shelf: Shelf) -> None:
    outcome = command("kernels", "verify")
    assert (outcome.status, outcome.err) == (0, "")
    data = bytearray(packed.read_bytes())
    data[PAGE + 150] ^= 1
    packed.write_bytes(data)
    assert "in use" in command("kernels", "list").out
    outcome = command("kernels", "verify")
    assert outcome.status == 3
    assert "damaged: its panels of " in outcome.out
    assert outcome.err.startswith("error: 1 of 2 files are not what was put there.\n")
    record = json.loads(command("kernels", "verify", "--json").out)
    assert record["packed"][0]["state"].startswith("damaged: its panels of ")


def test_a_damaged_library_does_not_verify(command: Command, shelf: Shelf) -> None:
    (shelf.folder / ("0" * 32 + ".so")).write_bytes(b"damaged")
    assert command("kernels", "verify").status == 3


def test_one_folder_is_cleared_and_the_other_left(
    command: Command, packed: Path, shelf: Shelf
) -> None:
    (packed.parent / ".packing-abcd1234").write_bytes(b"left behind")
    size = packed.stat().st_size + len("left behind")
    out = command("kernels", "clear", "packed").out
    assert out == f"Removed 1 packed file, {size:,} bytes in all, from {packed.parent}\n"
    assert [path.name for path in packed.parent.iterdir()] == [".lock"]
    assert len(list(shelf.folder.glob("*.so"))) == 1
    assert command("kernels", "clear", "everything").status == 2


def test_build_for_one_set(command: Command) -> None:
    outcome = command("kernels", "build", "--isa", "c")
    assert outcome.status == 0
    name, sha256 = outcome.out.split()
    assert name == "cpu-c"
    assert "Compiling the kernels for plain C" in outcome.err
    library, probe = json.loads(command("kernels", "list", "--json").out)["libraries"]
    assert (probe["name"], probe["state"]) == ("cpu-probe", "verified")
    assert (library["name"], library["sha256"], library["state"]) == ("cpu-c", sha256, "verified")
    again = command("kernels", "build", "--isa", "c")
    assert (again.out, again.err) == (outcome.out, "")


def test_a_library_that_is_not_kept_is_no_success(command: Command, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder")
    outcome = command("kernels", "build", "--isa", "c")
    assert outcome.status == 9
    assert outcome.out.startswith("cpu-c  ")
    folder = tmp_path / "home" / "libraries"
    assert f"error: {folder} has not kept cpu-c: compiled and proved, they" in outcome.err


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_library_among_others_that_is_not_used_is_no_success(command: Command) -> None:
    assert command("kernels", "build", "--isa", "c").status == 0
    places.libraries().chmod(0o777)
    assert command("kernels", "build", "--isa", "c").status == 9


def test_an_unknown_set_is_refused(command: Command) -> None:
    outcome = command("kernels", "build", "--isa", "sse9")
    assert outcome.status == 5
    assert outcome.err.startswith("error: 'sse9' is not an instruction set")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-5, "0 s"), (59, "59 s"), (61, "1 min"), (7200, "2 h"), (86400 * 400, "400 d")],
)
def test_ages(seconds: float, said: str) -> None:
    assert age(seconds) == said
