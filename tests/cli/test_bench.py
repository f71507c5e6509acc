"""`muser bench` on a tiny model; how fast anything is, is nobody's claim here."""

import json
from dataclasses import replace

import pytest

from muser import places
from muser.bench import record as records
from muser.bench.ours import MuserSide
from muser.kernels import Shelf, choose_library, supported_isas
from muser.models.synth import synthesise
from tests.bench import written
from tests.devices.cuda.fake_driver import FakeDriver


@pytest.fixture(scope="session")
def compiled():
    """The libraries of all tests: a home of its own would have them compiled for every command."""
    return places.libraries()


@pytest.fixture
def command(compiled, command, tmp_path):
    compiled.mkdir(parents=True, exist_ok=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "libraries").symlink_to(compiled, target_is_directory=True)
    return command


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.gguf"
    synthesise(path, architecture="llama", seed=2)
    return path


@pytest.mark.parametrize(
    ("kind", "flags", "cells"),
    [
        ("decode", ("--depths", "0,3", "-n", "4"), [(0, 4, 1), (3, 4, 1)]),
        ("prefill", ("--sizes", "5",), [(0, 5, 1)]),
        ("batch", ("--slots", "1,2", "-n", "3"), [(0, 3, 1), (0, 3, 2)]),
    ],
)  # fmt: skip
def test_a_measurement_is_printed_and_written_down(command, model, tmp_path, kind, flags, cells):
    shared = ("-m", str(model), "-t", "1", "--repetitions", "2", "--allow-noise", "--json")
    outcome = command("bench", kind, *flags, *shared, "--records", str(tmp_path / "kept"))
    assert outcome.status == 0, outcome.err
    [(_, record)] = records.read_all(tmp_path / "kept")
    assert json.loads(outcome.out) == record
    assert record["kind"] == kind
    found = [
        (cell["depth"], cell["tokens"], cell["slots"])
        for run in record["runs"]
        for cell in run["cells"]
    ]
    assert found == cells


def test_a_noisy_machine_is_an_error_after_the_record(command, model, tmp_path, monkeypatch):
    monkeypatch.setattr("muser.bench.quiet.MOST_OTHERS", -1.0)
    flags = ("-m", str(model), "-t", "1", "--repetitions", "1", "-n", "2", "--depths", "0")
    outcome = command("bench", "decode", *flags)
    assert outcome.status == 11
    assert "error: The machine was not quiet" in outcome.err
    assert "decode 2 at depth 0" in outcome.out
    [(_, record)] = records.read_all(tmp_path / "home" / "records")
    assert record["quiet"] is False
    assert command("bench", "decode", *flags, "--allow-noise").status == 0


def test_a_wrong_run_is_an_error_after_the_record_and_tells_no_speed(
    command, model, tmp_path, monkeypatch
):
    def lying(self, prompts, fed, *, margins=False):
        sample = honest(self, prompts, fed, margins=margins)
        return replace(sample, ids=(*sample.ids[:-1], sample.ids[-1] + 1))

    honest = MuserSide.decode
    monkeypatch.setattr(MuserSide, "decode", lying)
    flags = ("-m", str(model), "-t", "1", "--repetitions", "1", "-n", "2", "--depths", "0")
    outcome = command("bench", "decode", *flags)
    assert outcome.status == 10
    assert "error: decode 2 at depth 0: choice 1 is " in outcome.err
    assert outcome.out == ""
    [(_, record)] = records.read_all(tmp_path / "home" / "records")
    assert record["runs"] == []
    assert record["failed"]["sides"]["ours"]["libraries"]
    assert json.loads(command("bench", "decode", *flags, "--json").out)["failed"]


@pytest.mark.parametrize("kind", ["decode", "kernels", "start", "load"])
def test_a_set_is_no_reference_of_itself(command, model, monkeypatch, kind):
    monkeypatch.setenv("MUSER_ISA", "c")
    if len(supported_isas(choose_library(Shelf(places.libraries()), "c"))) == 1:
        pytest.skip("this processor has plain C alone")
    outcome = command("bench", kind, "-m", str(model), "--reference", "c")
    assert outcome.status == 2
    assert outcome.err.startswith("error: --reference c is the set that is measured")


@pytest.mark.parametrize(
    "flags",
    [
        ("decode", "--depths", "0,x"),
        ("decode", "--depths", "-1"),
        ("decode", "-n", "0"),
        ("prefill", "--sizes", "0"),
        ("batch", "--slots", "0"),
        ("decode", "--repetitions", "0"),
        ("decode", "-t", "1,0", "-m", "{model}"),
    ],
)
def test_impossible_sizes_are_refused_before_any_work(command, model, flags):
    outcome = command("bench", *(flag.format(model=model) for flag in flags))
    assert outcome.status == 2
    assert outcome.err.startswith("error: ")


def test_more_threads_than_there_is_room_for(command, model):
    outcome = command("bench", "decode", "-t", "1,1000", "-m", str(model))
    assert outcome.status == 7
    assert outcome.err.startswith("error: 1000 threads")


def test_a_picture_that_cannot_be_written_costs_no_record(command, model, tmp_path):
    pytest.importorskip("matplotlib")
    flags = ("-m", str(model), "-t", "1", "--plays", "3", "--chunk", "0", "--allow-noise")
    outcome = command("bench", "kernels", *flags, "--plot", str(tmp_path / "none" / "k.png"))
    assert outcome.status == 9
    assert len(records.read_all(tmp_path / "home" / "records")) == 1


def test_kernels_need_the_library_that_draws_before_any_work(command, model, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = command("bench", "kernels", "-m", str(model), "--plot", "k.png")
    assert outcome.status == 2
    assert "muser[plots]" in outcome.err


def test_kernels_are_printed_and_drawn(command, model, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "k.png"
    flags = ("-m", str(model), "-t", "1", "--plays", "3", "--chunk", "20", "--plot", str(picture))
    outcome = command("bench", "kernels", *flags, "--allow-noise")
    assert outcome.status == 0, outcome.err
    assert "20 tokens of a prompt at depth 0, threads: 1" in outcome.out
    assert picture.stat().st_size > 10_000
    [(_, record)] = records.read_all(tmp_path / "home" / "records")
    assert record["kind"] == "kernels"


def test_a_load_is_printed_with_its_memory(command, model, tmp_path):
    flags = ("-m", str(model), "-t", "1", "-c", "64", "--repetitions", "1", "--allow-noise")
    outcome = command("bench", "load", *flags)
    assert outcome.status == 0, outcome.err
    assert "muser: load" in outcome.out
    [(_, record)] = records.read_all(tmp_path / "home" / "records")
    memory = record["runs"][0]["loads"]["ours"]["memory"]["after"]
    assert memory["rss"] == memory["file"] + memory["anonymous"]


def test_the_report_is_written_and_checked(command, tmp_path):
    for record in written.ALL:
        records.write(record, tmp_path / "records")
    flags = ("--records", str(tmp_path / "records"), "--out", str(tmp_path / "page.md"))
    assert command("bench", "report", *flags, "--check").status == 2
    assert command("bench", "report", *flags).status == 0
    assert command("bench", "report", *flags, "--check").status == 0
    (tmp_path / "page.md").write_text("other")
    assert "bench report` again" in command("bench", "report", *flags, "--check").err
    assert command("bench", "report", "--records", str(tmp_path / "none")).status == 2


class Double(MuserSide):
    """Muser once more, as a rival."""

    def __init__(self, path=None, *, name="double", **chosen):
        super().__init__(name=f"{name} {path.name}")


def test_a_rival_is_measured_in_turns(command, model, tmp_path, monkeypatch):
    monkeypatch.setattr("muser.bench.rivals.LlamaLibrarySide", Double)
    flags = ("-m", str(model), "-t", "1", "--repetitions", "2", "--allow-noise", "-n", "3")
    sizes = ("--depths", "0", "--sizes", "6", "--slots", "2")
    outcome = command("bench", "vs", "llama.cpp", "lib.so", *flags, *sizes)
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("ours ÷ theirs") == 3
    assert outcome.out.count("same choices") == 3
    assert "  double lib.so" in outcome.out
    assert command("bench", "vs", "llama.cpp", "lib.so", "--load", *flags[:-2]).status == 0
    found = [record for _, record in records.read_all(tmp_path / "home" / "records")]
    assert {record["kind"] for record in found} == {"vs", "load"}
    cells = [cell for one in found for run in one["runs"] for cell in run.get("cells", ())]
    assert [cell["surface"] for cell in cells] == ["decode", "prefill", "batch"]
    assert all(cell["first"] == ["muser", "double lib.so"] for cell in cells)
    assert all(cell["agreement"]["exact"] for cell in cells)


def test_what_a_rival_is_asked_for_is_in_its_name_and_its_cells(
    command, model, tmp_path, monkeypatch
):
    asked = []

    class Asked(Double):
        def __init__(self, path=None, **chosen):
            asked.append(chosen)
            super().__init__(path, **chosen)

    monkeypatch.setattr("muser.bench.rivals.LlamaLibrarySide", Asked)
    flags = ("-m", str(model), "-t", "1", "--repetitions", "1", "--allow-noise", "-n", "2")
    sizes = ("--depths", "0", "--sizes", "6", "--slots", "2", "--slot-depth", "3")
    more = ("--batch", "2048", "--gpu-layers", "7")
    outcome = command("bench", "vs", "llama.cpp", "lib.so", *flags, *sizes, *more)
    assert outcome.status == 0, outcome.err
    assert asked == [{"layers": 7, "batch": 2048, "name": "llama.cpp in batches of 2048"}]
    assert "  llama.cpp in batches of 2048 lib.so" in outcome.out
    assert "batch 2 × 2 at depth 3" in outcome.out
    outcome = command("bench", "vs", "flyweight-llm", *more)
    assert outcome.status == 2
    assert "--batch and --gpu-layers are llama.cpp's" in outcome.err


def test_rivals_have_names_and_llama_cpp_a_path(command):
    assert "Known: llama.cpp" in command("bench", "vs", "nobody").err
    assert "libllama.so" in command("bench", "vs", "llama.cpp").err


def test_a_device_is_never_replaced_by_another(command, monkeypatch):
    outcome = command("bench", "kernels", "--device", "oracle")
    assert outcome.status == 2
    assert "timed on cpu or cuda, not on oracle" in outcome.err
    monkeypatch.setattr("muser.devices.cuda.driver.driver_module", lambda: FakeDriver(cards=0))
    outcome = command("bench", "kernels", "--device", "cuda")
    assert outcome.status == 5
    assert "There is no CUDA card 0" in outcome.err
    outcome = command("bench", "decode", "--device", "cude")  # before a model is looked for
    assert outcome.status == 5
    assert "There is no device 'cude'" in outcome.err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--slots", "1,0"), "60 plays of 0 sequences"),
        (("--slots", "65"), "65 sequences are more than are timed together"),
        (("--plays", "0"), "0 plays of 1 sequences"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_a_model_is_looked_for(command, flags, sentence):
    outcome = command("bench", "kernels", "-m", "/nowhere.gguf", *flags)
    assert outcome.status == 2
    assert sentence in outcome.err
