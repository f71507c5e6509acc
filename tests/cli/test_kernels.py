"""`muser kernels`: what is listed, built and removed."""

import json
from pathlib import Path

import pytest
from outcome import Command

from muser import places
from muser.cli.kernels import age
from muser.kernels import Shelf
from muser.kernels.about import CONTRACT, About

ABOUT = About("avx2", CONTRACT, "cc 12.2\nx86_64-linux-gnu", "x86_64", "-O3", "ab" * 32)


@pytest.fixture
def shelf(command: Command) -> Shelf:
    """A library in the home of `command`."""
    made = Shelf(places.libraries())
    made.take("0" * 32, lambda path: path.write_bytes(b"library"), ABOUT)
    return made


def test_an_empty_list(command: Command, tmp_path: Path) -> None:
    outcome = command("kernels", "list")
    folder = tmp_path / "home" / "libraries"
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == f"Libraries folder: {folder}\n"
    assert not folder.exists()


def test_a_list(command: Command, shelf: Shelf) -> None:
    outcome = command("kernels", "list")
    head, row, gap, folder = outcome.out.splitlines()
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
    assert outcome.out.startswith("Removed 1 library, ")
    assert outcome.out.endswith(f" bytes in all, from {shelf.folder}\n")
    assert command("kernels", "clear").out.startswith("Removed 0 libraries, 0 bytes in all, from ")


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
