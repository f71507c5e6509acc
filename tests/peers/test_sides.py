"""llama-cpp-python's library, through the shim and through its own bindings: the same bits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agree.engines import LlamaCpp
from peers import llama_cpp_python

from muser.bench import Side
from muser.bench.ours import MuserSide
from muser.bench.rivals import LlamaLibrarySide, LlamaPythonSide
from muser.models.synth import synthesise

pytestmark = pytest.mark.peers
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
FED = [5, 3, 5, 8, 9, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synthesise(path, architecture="llama", seed=7, context=2048)
    return path


@pytest.fixture(scope="module")
def sides(peer: LlamaCpp) -> Iterator[tuple[Side, Side]]:
    with (
        LlamaLibrarySide(llama_cpp_python.library()) as shim,
        LlamaPythonSide(llama_cpp_python.python()) as bindings,
    ):
        yield shim, bindings


@pytest.mark.parametrize("slots", [1, 2])
def test_decode(sides: tuple[Side, Side], model: Path, slots: int) -> None:
    prompts, fed = [PROMPT, PROMPT[:3]][:slots], [FED, FED[::-1]][:slots]
    found = []
    for side in sides:
        side.load(model, threads=1, context=64, slots=slots)
        sample = side.decode(prompts, fed, margins=True)
        assert len(sample.ids) == len(FED) * slots
        found.append((sample.ids, sample.logits_sha256, sample.margins))
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [1, 8, 512, 700])
def test_prefill(sides: tuple[Side, Side], model: Path, size: int) -> None:
    ids = [(at * 7 + 1) % 200 for at in range(size)]
    found = []
    for side in sides:
        side.load(model, threads=1, context=1024)
        sample = side.prefill(ids)
        found.append((sample.ids, sample.logits_sha256))
    assert found[0] == found[1]


def test_the_identity_names_its_libraries(sides: tuple[Side, Side]) -> None:
    shim, bindings = (side.identity() for side in sides)
    assert shim["libraries"] == bindings["libraries"]
    assert shim["instruction_sets"] == bindings["instruction_sets"]


def test_first_choices_are_mostly_ours(sides: tuple[Side, Side], model: Path) -> None:
    with MuserSide() as ours:
        for side in (ours, sides[0]):
            side.load(model, threads=1, context=64)
        mine = ours.decode([PROMPT], [FED], margins=True)
        theirs = sides[0].decode([PROMPT], [FED], margins=True)
    assert mine.margins is not None
    triples = zip(mine.ids, theirs.ids, mine.margins, strict=True)
    assert all(one == other for one, other, margin in triples if margin > 0.1)
