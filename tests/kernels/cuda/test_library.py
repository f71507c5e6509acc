"""The CUDA library on the shelf: found again, compiled again where damaged; no NVRTC, one error."""

import hashlib
import json
import logging
import sys

import pytest

from muser.errors import DeviceError
from muser.kernels import Shelf, cuda_library, listing, load_cuda, nvrtc
from muser.kernels.cuda_registry import Unit
from muser.kernels.source import Source

from .conftest import absent

TEXTS = {
    "one.cu": b'#include "both.cuh"\nKERNEL one(float* x) { *x = 1; }',
    "two.cu": b'#include "both.cuh"\nKERNEL two(float* x) { *x = 2; }',
    "both.cuh": b'#define KERNEL extern "C" __global__ void',
}
UNITS = {name: Unit(f"{name}.cu", (name,)) for name in ("one", "two")}


@pytest.fixture
def compiler():
    """NVRTC."""
    try:
        return nvrtc.Nvrtc()
    except DeviceError as problem:
        absent(problem)


@pytest.fixture
def compiled(compiler, monkeypatch):
    """Two small units in the place of the real ones; the list of what was compiled."""
    asked, whole = [], nvrtc.Nvrtc.compiled

    def noted(self, source, unit, architecture, more=()):
        asked.append((unit, architecture))
        return whole(self, source, unit, architecture, more)

    monkeypatch.setattr(nvrtc.Nvrtc, "compiled", noted)
    monkeypatch.setattr(cuda_library, "UNITS", UNITS)
    monkeypatch.setattr(cuda_library, "units_of", lambda architecture: tuple(UNITS))
    return asked


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / "shelf")


def load(shelf, architecture="sm_80", texts=TEXTS):
    return load_cuda(architecture, Shelf(shelf.folder), Source(texts))


def test_an_archive_is_found_again(compiled, shelf):
    first = load(shelf)
    assert sorted(compiled) == [("one.cu", "sm_80"), ("two.cu", "sm_80")]
    assert load(shelf) == first
    assert len(compiled) == 2
    assert first.name == "cuda-sm_80"
    assert {name: b"\x7fELF" in image[:4] for name, image in first.images.items()} == {
        "one": True,
        "two": True,
    }


def test_the_same_texts_give_the_same_archive(compiled, shelf, tmp_path):
    """Its hash names the library in every answer."""
    assert load(shelf).sha256 == load(Shelf(tmp_path / "another")).sha256


def test_architectures_and_texts_do_not_meet(compiled, shelf):
    changed = {**TEXTS, "two.cu": TEXTS["two.cu"].replace(b"2", b"3")}
    kinds = [load(shelf), load(shelf, "sm_90"), load(shelf, texts=changed)]
    assert len({library.sha256 for library in kinds}) == 3
    assert len(compiled) == 6


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_archive_is_compiled_again(compiled, shelf, caplog, damage):
    first = load(shelf)
    (path,) = shelf.folder.glob("*.so")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if damage is None else damage)
    with caplog.at_level(logging.WARNING):
        assert load(shelf) == first
    assert "does not match its hash" in caplog.text
    assert len(compiled) == 4
    assert path.read_bytes() == whole


def test_an_archive_written_wrong_is_one_error(compiled, shelf):
    load(shelf)
    (path,), (about,) = shelf.folder.glob("*.so"), shelf.folder.glob("*.json")
    path.write_bytes(b"no archive")
    record = json.loads(about.read_text())
    record["sha256"] = hashlib.sha256(b"no archive").hexdigest()
    about.write_text(json.dumps(record))
    with pytest.raises(DeviceError, match=r"is no archive .*muser kernels clear"):
        load(shelf)


def test_a_refused_text_names_unit_and_complaint(compiled, shelf):
    broken = {**TEXTS, "two.cu": b"KERNEL two() { nothing; }"}
    with pytest.raises(
        DeviceError, match=r"could not compile two\.cu for sm_80: two\.cu\(1\): error"
    ):
        load(shelf, texts=broken)
    assert not [*shelf.folder.glob("*.so")]


def test_its_name_on_the_shelf(compiled, shelf):
    load(shelf)
    assert [item.about.library for item in listing.items(shelf.folder)] == ["cuda-sm_80"]


def test_no_bindings(monkeypatch, shelf):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(
        DeviceError, match=r"CUDA bindings are not here.*pip install 'muser\[cuda\]'"
    ):
        load(shelf)


def test_bindings_without_the_compilers_library(monkeypatch, shelf):
    class Bindings:
        def nvrtcVersion(self):  # noqa: N802 - NVIDIA's name
            raise RuntimeError("libnvrtc.so.13 is not here")

    monkeypatch.setattr(nvrtc, "bindings", lambda library: Bindings())
    with pytest.raises(DeviceError, match=r"NVRTC cannot be loaded \(libnvrtc.so.13 is not here\)"):
        load(shelf)


def test_the_compiler_writes_into_nobody_elses_bytes(compiler):
    """An empty log is one byte, and a single byte is one object in all of Python."""
    source = Source({"unit.cu": b'extern "C" __global__ void nothing() {}'})
    assert not compiler.compiled(source, "unit.cu", "sm_90").log
    assert all(ord(chr(code)) == code and bytes([code])[0] == code for code in range(256))
