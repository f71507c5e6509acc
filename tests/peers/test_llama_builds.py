"""llama.cpp's builds: what names their folders, and where their source comes from."""

import json
import os
import tarfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from peers import llama_build, llama_cuda
from peers.building import PeerError
from peers.llama_build import OPTIONS, PINNED, Recipe

RECIPE = Recipe(
    label="test",
    versions={"compiler": "cc 1", "nvcc": "nvcc 2"},
    options=(*OPTIONS, "-DGGML_NATIVE=OFF"),
    paths=("-DCMAKE_CXX_COMPILER=/cc",),
    targets=("llama", "llama-bench"),
    script="llama_test.py",
    minutes="a minute",
)
NVCC = """#!/bin/sh
case "$1" in
--version) echo "nvcc: a compiler"; echo "Build 13.0.1";;
*) echo '#$ _SPACE_= ' >&2; echo '#$ TOP={top}/bin/..' >&2;;
esac
"""


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSER_PEERS", str(tmp_path / "peers"))
    return tmp_path / "peers"


def tree(folder: Path) -> Path:
    for name in ("include/llama.h", "ggml/include/ggml.h", "CMakeLists.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def packed(folder: Path, name: str) -> Path:
    archive = folder / name
    with tarfile.open(archive, "w:xz") as file:
        file.add(tree(folder / "package" / "llama.cpp").parent, "package")
    return archive


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A build in place of cmake's: its library and a tool; the sources it was given."""
    given: list[Path] = []

    def compiled(_recipe: Recipe, _cmake: Path, source: Path, folder: Path) -> None:
        given.append(source)
        (folder / "bin").mkdir(parents=True)
        for name in ("libllama.so.0", "llama-bench", "another-tool"):
            (folder / "bin" / name).write_text(name)
        (folder / "bin" / "libllama.so").symlink_to("libllama.so.0")

    monkeypatch.setattr(Recipe, "_compile", compiled)
    monkeypatch.setattr(llama_build.shutil, "which", lambda name: f"/bin/{name}")
    return given


def test_versions_and_options_name_the_folder_and_paths_do_not() -> None:
    here = RECIPE.folder()
    assert here.name.startswith("llama.cpp-b11434-test-")
    assert replace(RECIPE, paths=()).folder() == here
    assert replace(RECIPE, options=OPTIONS).folder() != here
    assert replace(RECIPE, versions={"compiler": "cc 2", "nvcc": "nvcc 2"}).folder() != here


def test_an_archive_is_built_and_told(tmp_path: Path, quick: list[Path]) -> None:
    with pytest.raises(PeerError, match=r"llama_test\.py install.*about a minute"):
        RECIPE.where()
    archive = packed(tmp_path, "cut.tar.xz")
    kept = RECIPE.install(archive)
    assert kept == RECIPE.where() == RECIPE.install()
    assert len(quick) == 1
    names = {path.name for path in kept.iterdir()} - {"source.txt"}
    assert names == {"build.json", "include", "libllama.so", "libllama.so.0", "llama-bench"}
    assert {path.name for path in (kept / "include").iterdir()} == {"llama.h", "ggml.h"}
    told = json.loads((kept / "build.json").read_text())
    assert told["source"] == "cut.tar.xz"
    assert told["source_sha256"] == sha256(archive.read_bytes()).hexdigest()
    assert (told["compiler"], told["nvcc"]) == ("cc 1", "nvcc 2")
    assert told["files"]["libllama.so.0"] == sha256(b"libllama.so.0").hexdigest()
    assert archive.exists()


def test_the_pinned_archive_goes_by_its_package(
    tmp_path: Path, quick: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = packed(tmp_path, "any-name.tar.xz")
    digest = sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(llama_build, "SOURCE_SHA256", digest)
    told = json.loads((RECIPE.install(archive) / "build.json").read_text())
    assert told["source"] == PINNED["source"]


def test_a_folder_is_built_where_it_lies(tmp_path: Path, quick: list[Path]) -> None:
    source = tree(tmp_path / "llama.cpp")
    told = json.loads((RECIPE.install(source) / "build.json").read_text())
    assert quick == [source]
    assert source.is_dir()
    assert told["source"] == "the folder llama.cpp"
    assert told["source_sha256"] == "unknown"


def test_what_is_no_source(tmp_path: Path, quick: list[Path]) -> None:
    with pytest.raises(PeerError, match="no archive or folder"):
        RECIPE.install(tmp_path / "none.tar")
    with pytest.raises(PeerError, match="holds no source"):
        RECIPE.install(tmp_path)
    (tmp_path / "broken.tar").write_bytes(b"no archive")
    with pytest.raises(PeerError, match="cannot be unpacked"):
        RECIPE.install(tmp_path / "broken.tar")
    assert not quick


@pytest.mark.skipif(os.name == "nt", reason="a script stands in for nvcc")
def test_a_card_names_its_architecture_and_the_toolkit_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit = tmp_path / "cuda"
    for path in (toolkit / "bin" / "nvcc", toolkit / "bin" / "g++"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(NVCC.format(top=toolkit))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(toolkit / "bin"), prepend=os.pathsep)
    recipe = llama_cuda.recipe("90-real")
    assert recipe.versions == {"compiler": "nvcc: a compiler", "nvcc": "Build 13.0.1"}
    assert f"-DCMAKE_CUDA_COMPILER={toolkit.resolve()}/bin/nvcc" in recipe.paths
    places = [option for option in recipe.options if "RPATH=$" in option]
    assert places == [f"-DCMAKE_INSTALL_RPATH=$ORIGIN;{toolkit.resolve()}/lib64"]
    assert {*OPTIONS} - {*recipe.options} == {llama_cuda.RPATH}
    assert "-DCMAKE_CUDA_ARCHITECTURES=90-real" in recipe.options
    assert llama_cuda.recipe("120-real").folder() != recipe.folder()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerError, match="no nvcc"):
        llama_cuda.recipe("90-real")
