"""llama.cpp's sides: the shim against a library that computes nothing, and what is refused."""

import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from shutil import copytree

import pytest

from muser.bench.rivals import FlyweightSide, LlamaLibrarySide, LlamaPythonSide
from muser.bench.rivals.llama_side import found_library, include_folders
from muser.bench.rivals.llama_told import card_libraries, instruction_sets, on_cards
from muser.bench.rivals.llama_worker import by_slot
from muser.errors import DeviceError, UsageError
from muser.kernels import find_compiler

FAKE = Path(__file__).with_name("fake_llama")
VOCABULARY = 1000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake is a shared object")


def built(folder: Path, *flags: str) -> Path:
    """The fake library beside its headers, compiled with `flags`."""
    copytree(FAKE / "include", folder / "include")
    library = folder / "libllama.so"
    command = [*find_compiler().command, "-O1", "-fPIC", "-shared", *flags]
    paths = [f"-I{folder / 'include'}", str(FAKE / "fake.c"), "-o", str(library)]
    subprocess.run([*command, *paths], check=True)
    return library


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def side(tmp_path: Path) -> Iterator[LlamaLibrarySide]:
    with LlamaLibrarySide(built(tmp_path)) as opened:
        yield opened


def choice(token: int, position: int, slot: int = 0) -> int:
    return (token + 3 * position + 100 * slot) % VOCABULARY


def test_decode_feeds_what_it_is_given(side: LlamaLibrarySide, model: Path) -> None:
    side.load(model, threads=2, context=8)
    sample = side.decode([[5, 6]], [[7, 8, 9]], margins=True)
    assert sample.ids == (choice(7, 2), choice(8, 3), choice(9, 4))
    assert sample.margins == (0.0, 0.0, 0.0)
    assert sample.ns > 0
    assert side.decode([[]], [[7]]).ids == (choice(7, 0),)


def test_a_crash_says_what_may_help(side: LlamaLibrarySide, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="ended with status -6") as caught:
        side.load(tmp_path / "crash.gguf", threads=1, context=8)
    assert "LD_PRELOAD" in caught.value.remedy
    assert "by hand" in caught.value.remedy


def test_slots_lie_one_after_the_other(side: LlamaLibrarySide, model: Path) -> None:
    side.load(model, threads=1, context=8, slots=2)
    sample = side.decode([[1], [2, 3]], [[10, 11], [20, 21]])
    first = [choice(10, 1, 0), choice(11, 2, 0)]
    assert list(sample.ids) == [*first, choice(20, 2, 1), choice(21, 3, 1)]
    assert sample.logits_sha256 is not None
    assert len(set(sample.logits_sha256)) == 2


def test_a_long_prompt_goes_in_batches(side: LlamaLibrarySide, model: Path) -> None:
    side.load(model, threads=1, context=2048)
    ids = [at % 900 for at in range(1200)]
    assert side.prefill(ids).ids == (choice(ids[-1], 1199),)
    assert side.prefill(ids[:512]).ids == (choice(ids[511], 511),)


def test_a_full_context_is_an_error(side: LlamaLibrarySide, model: Path) -> None:
    side.load(model, threads=1, context=4)
    with pytest.raises(DeviceError, match="llama_decode returned 1"):
        side.decode([[]], [[1, 2, 3, 4, 5]])
    assert side.decode([[]], [[1, 2]]).ids == (choice(1, 0), choice(2, 1))


def test_no_model(side: LlamaLibrarySide, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot load this model"):
        side.load(tmp_path / "none.gguf", threads=1, context=4)


def test_identity(side: LlamaLibrarySide, model: Path) -> None:
    side.load(model, threads=2, context=8)
    identity = side.identity()
    assert identity["engine"] == "llama.cpp"
    assert identity["instruction_sets"] == ["AVX", "AMX_INT8"]
    assert set(identity["libraries"]) == {"libllama.so"}
    assert identity["settings"]["threads"] == 2
    assert identity["settings"]["said"] == ["load_tensors: AMX model buffer size = 1 MiB"]
    assert identity["settings"]["n_batch"] == identity["settings"]["n_ubatch"] == 512
    assert identity["settings"]["n_gpu_layers"] == -1
    assert not {"cards", "offloaded"} & set(identity["settings"])
    assert side.memory().rss >= 0


def test_batches_and_layers_on_cards_are_those_asked_for(tmp_path: Path, model: Path) -> None:
    with LlamaLibrarySide(built(tmp_path), batch=5, layers=7) as side:
        side.load(model, threads=1, context=2048)
        ids = [at % 900 for at in range(23)]
        assert side.prefill(ids).ids == (choice(ids[-1], 22),)
        settings = side.identity()["settings"]
    assert settings["n_batch"] == settings["n_ubatch"] == 5
    assert settings["n_gpu_layers"] == 7
    assert settings["cards"] == [{"device": "CUDA0", "name": "a card"}]
    assert settings["offloaded"] == {"layers": 7, "of": 9}
    assert len(settings["said"]) == 3


def test_a_batch_the_library_refuses(tmp_path: Path, model: Path) -> None:
    with (
        LlamaLibrarySide(built(tmp_path), batch=513) as side,
        pytest.raises(DeviceError, match="cannot make a context"),
    ):
        side.load(model, threads=1, context=8)


@pytest.mark.parametrize("batch", [0, 4097])
def test_a_batch_that_is_none(tmp_path: Path, batch: int) -> None:
    with pytest.raises(UsageError, match=f"A batch of {batch} tokens is none"):
        LlamaLibrarySide(tmp_path, batch=batch)
    with pytest.raises(UsageError, match=f"A batch of {batch} tokens is none"):
        LlamaPythonSide(batch=batch)


@pytest.mark.skipif("x86" not in find_compiler().identity, reason="sizes are seen on x86-64 only")
@pytest.mark.parametrize("fields", [6, 10])
def test_headers_of_another_build_are_refused(tmp_path: Path, fields: int, model: Path) -> None:
    library = built(tmp_path, f"-DFIELDS={fields}")
    with (
        LlamaLibrarySide(library) as other,
        pytest.raises(DeviceError, match="they belong to another build"),
    ):
        other.load(model, threads=1, context=8)


def test_a_library_without_headers(tmp_path: Path) -> None:
    library = tmp_path / "deep" / "er" / "libllama.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    with pytest.raises(DeviceError, match=r"no llama\.h"):
        include_folders(library)


def test_headers_of_a_source_tree(tmp_path: Path) -> None:
    library = tmp_path / "build" / "bin" / "libllama.so"
    for path in (library, tmp_path / "include/llama.h", tmp_path / "ggml/include/ggml.h"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert include_folders(library) == (tmp_path / "include", tmp_path / "ggml" / "include")


def test_a_path_that_is_no_library(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No libllama"):
        found_library(tmp_path)


def test_interpreters_without_the_package(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no llama_cpp"):
        LlamaPythonSide(tmp_path / "python")
    with pytest.raises(UsageError, match="no flyweight"):
        FlyweightSide(tmp_path / "python")


def test_system_line() -> None:
    said = "CPU : SSE3 = 1 | AVX512_VNNI = 1 | AMX_INT8 = 0 | REPACK = 1 | "
    assert instruction_sets(said) == ["SSE3", "AVX512_VNNI", "REPACK"]


def test_by_slot() -> None:
    assert by_slot([[1, 2], [3, 4], [5, 6]]) == [1, 3, 5, 2, 4, 6]


def test_what_is_said_of_cards() -> None:
    said = [
        "llama_model_load: using device CUDA0 (NVIDIA H200) (0000:00:05.0) - 142000 MiB free",
        "llama_model_load: using device CUDA1 (NVIDIA H200) (0000:00:06.0) - 142000 MiB free",
        "load_tensors: offloaded 52/53 layers to GPU",
        "load_tensors:        CUDA0 model buffer size = 15000.00 MiB",
    ]
    assert on_cards(said) == {
        "cards": [
            {"device": "CUDA0", "name": "NVIDIA H200"},
            {"device": "CUDA1", "name": "NVIDIA H200"},
        ],
        "offloaded": {"layers": 52, "of": 53},
    }
    assert on_cards(said[3:]) == {}


def test_cudas_libraries_are_those_that_are_loaded(tmp_path: Path) -> None:
    names = ("libcublas.so.13", "libcublasLt.so.13", "libcuda.so.580.1", "libcurand.so.10")
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    maps = tmp_path / "maps"
    lines = [f"7f00-7f01 r-xp 00000000 08:01 5    {tmp_path / name}\n" for name in names]
    maps.write_text("".join([*lines, *lines, "7f00-7f01 rw-p 00000000 00:00 0 \n"]))
    assert list(card_libraries(maps)) == sorted(names[:3])
    assert card_libraries(maps)[names[0]] == sha256(names[0].encode()).hexdigest()
    assert card_libraries(tmp_path / "none") == {}
