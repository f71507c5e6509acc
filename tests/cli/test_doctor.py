"""`muser doctor`: facts, problems with remedies, a status that a script can ask."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outcome import Command, Outcome

from muser import places
from muser.bench import starting
from muser.bench.lock import alone
from muser.bench.starting import Start, cold_and_warm, middle, timed
from muser.cli import doctor_facts
from muser.errors import DeviceError
from muser.kernels import Shelf
from muser.models.synth import synthesise

Doctor = Callable[..., tuple[Outcome, dict[str, Any]]]


@pytest.fixture(scope="session")
def shelf() -> Path:
    """Where compiled kernels usually lie: found before any test changes MUSER_HOME."""
    folder = places.libraries()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def doctor(
    shelf: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Doctor:
    """Run it with --json on the usual shelf, and with plain C, which compiles soonest."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "libraries").symlink_to(shelf)
    monkeypatch.setenv("MUSER_ISA", "c")

    def run(*flags: str) -> tuple[Outcome, dict[str, Any]]:
        outcome = command("doctor", "--json", *flags)
        return outcome, json.loads(outcome.out)

    return run


def problems(record: dict[str, Any]) -> list[str]:
    return [problem["sentence"] for problem in record["problems"]]


def test_a_machine_that_can_run(doctor: Doctor, tmp_path: Path) -> None:
    outcome, record = doctor()
    assert outcome.status == 0
    assert record["kernels"]["supported"][0] == "c"
    assert "c" in record["kernels"]["built"]
    ((name, sha256),) = record["kernels"]["runs"].items()
    assert (name, len(sha256)) == ("cpu-c", 64)
    assert record["compiler"]["version"]
    assert record["threads"]["default"] >= 1
    assert record["environment"]["MUSER_ISA"] == "c"
    assert record["places"]["models"]["path"] == str(tmp_path / "home" / "models")
    assert record["models"][0] == {
        "name": "smollm2-135m",
        "path": str(tmp_path / "home" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"),
        "here": False,
        "bytes": 98_362_432,
    }
    assert not any(problem["needed"] for problem in record["problems"])


def test_the_same_for_a_person(doctor: Doctor, command: Command) -> None:
    doctor()
    outcome = command("doctor")
    assert outcome.status == 0
    begins = [line.split()[0] for line in outcome.out.splitlines() if line[0] != " "]
    assert begins[:9] == [
        *("muser", "processor", "kernels", "compiler", "libraries", "packed", "models"),
        *("threads", "memory"),
    ]
    assert "runs cpu-c " in outcome.out


def test_without_a_compiler(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSER_CC", "/nowhere/cc")
    outcome, record = doctor()
    assert outcome.status == DeviceError.exit_status
    assert record["compiler"] is None
    assert record["kernels"]["runs"] is None
    assert "'/nowhere/cc' cannot be run" in problems(record)[0]
    assert record["problems"][0]["needed"]
    assert record["problems"][0]["remedy"]
    assert outcome.err.startswith("error: The C compiler '/nowhere/cc' cannot be run")


def test_a_set_that_is_not_there(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSER_ISA", "sse9")
    outcome, record = doctor()
    assert outcome.status == DeviceError.exit_status
    assert "sse9" in problems(record)[0]


def test_a_home_that_cannot_be_written(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(doctor_facts, "_proved", lambda shelf: {})
    outcome, record = doctor()
    assert outcome.status == 0
    assert not record["places"]["libraries"]["writable"]
    assert problems(record) == [
        f"{tmp_path / 'file'} cannot be written: kernels are compiled anew at every start.",
        f"{tmp_path / 'file'} cannot be written: weights are packed anew at every load.",
        f"{tmp_path / 'file'} cannot be written: no model can be fetched.",
    ]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
@pytest.mark.parametrize("name", ["libraries", "packed"])
def test_a_folder_that_everybody_can_write(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home = tmp_path / "other"
    (home / name).mkdir(parents=True)
    (home / name).chmod(0o777)
    monkeypatch.setenv("MUSER_HOME", str(home))
    monkeypatch.setattr(doctor_facts, "_proved", lambda shelf: {})
    _, record = doctor()
    assert not record["places"][name]["trusted"]
    assert "can be written by every user, so nothing in it is used" in problems(record)[0]


def test_a_shelf_that_forbids_execution(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_facts, "_is_executable", lambda folder: False)
    outcome, record = doctor()
    assert outcome.status == 0
    assert "forbids execution: libraries are run from memory" in problems(record)[0]


def test_libraries_that_are_not_sound(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "other" / "libraries"
    folder.mkdir(parents=True)
    for digit in "01":
        (folder / f"{digit * 32}.so").write_bytes(b"x")
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(doctor_facts, "_proved", lambda shelf: {})
    _, record = doctor()
    (said,) = problems(record)
    assert said.startswith(str(folder))
    assert said.endswith(".so is corrupt: it has no record, and 1 more of 2 are not sound.")


def test_a_folder_that_the_examination_makes(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are compiled first, and where they lie is looked at then."""

    def compiled(shelf: Shelf) -> dict[str, Any]:
        shelf.folder.mkdir(parents=True)
        return {}

    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(doctor_facts, "_proved", compiled)
    _, record = doctor()
    assert record["places"]["libraries"]["exists"]
    assert not record["places"]["packed"]["exists"]


def test_packed_weights(doctor: Doctor, command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "packed"
    folder.mkdir()
    (folder / f"{'0' * 32}.packed").write_bytes(b"x" * 2_000_000)
    (folder / ".packing-abcd1234").write_bytes(b"x" * 1_000_000)
    _, record = doctor()
    assert record["packed"] == {"files": 2, "bytes": 3_000_000, "stale": 1}
    (said,) = problems(record)
    assert said.startswith(f"{folder / ('0' * 32 + '.packed')} is damaged")
    assert f"packed      {folder} (" in command("doctor").out
    assert ": 2 files, 3 MB, 1 of them stale" in command("doctor").out


def test_templates_whose_process_does_not_start(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("muser.text.sandbox.Sandbox._running", refuse)
    outcome, record = doctor()
    assert outcome.status == 0
    assert "process of chat templates does not work" in problems(record)[-1]


def test_other_systems_tell_less(tmp_path: Path) -> None:
    assert doctor_facts.memory(tmp_path) == {}
    assert doctor_facts.processor(tmp_path)["bits"] == []
    (tmp_path / "cpuinfo").write_text("processor : 0\nFeatures : fp asimd asimddp i8mm\n")
    (tmp_path / "meminfo").write_text("MemTotal:  2 kB\nMemAvailable: 1 kB\nMemFree: x\nodd\n")
    assert doctor_facts.processor(tmp_path)["bits"] == ["asimd", "asimddp", "i8mm"]
    assert doctor_facts.memory(tmp_path) == {"bytes": 2048, "available": 1024}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    synthesise(path, layers=1)
    return path


def test_times_of_a_start(doctor: Doctor, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pretend(model: Path, home: Path) -> Start:
        assert list(home.iterdir()) == []
        asked.append((model, home))
        return Start(*(float(len(asked)) for _ in range(6)))

    monkeypatch.setattr(starting, "timed", pretend)
    _, record = doctor("--time", "--model", str(tiny))
    start = record["start"]
    assert start["model"] == str(tiny)
    assert start["cold"]["compile_s"] == 1.0
    assert [run["load_s"] for run in start["warm_runs"]] == [2.0, 3.0, 4.0]
    assert start["warm"]["first_token_s"] == 3.0
    homes = {home for _, home in asked}
    assert len(homes) == 1, "warm starts are those of the shelf that the cold one filled"
    assert not homes.pop().exists()


def test_times_are_taken_alone(doctor: Doctor, tiny: Path, command: Command) -> None:
    with alone(places.home()):
        outcome = command("doctor", "--time", "--model", str(tiny))
    assert outcome.status == 11
    assert "Another measurement is running" in outcome.err


def test_a_model_without_time_is_a_mistake(command: Command) -> None:
    assert command("doctor", "--model", "x").status == 2


def test_a_real_start(shelf: Path, tiny: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """In a process of its own, on the usual shelf: every part took some time."""
    monkeypatch.setenv("MUSER_ISA", "c")
    start = timed(tiny, shelf.parent)
    assert min(vars_of(start)) > 0
    assert sum(vars_of(start)[:-1]) <= start.total_s + 1e-6


def vars_of(start: Start) -> list[float]:
    return [getattr(start, name) for name in Start.__dataclass_fields__]


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"failed: .*away.gguf"):
        timed(tmp_path / "away.gguf", tmp_path)


def test_cold_comes_first(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = iter([Start(*[float(n)] * 6) for n in (9, 3, 1, 2)])
    monkeypatch.setattr(starting, "timed", lambda model, home: next(starts))
    cold, warm = cold_and_warm(tiny)
    assert cold.load_s == 9
    assert middle(warm).load_s == 2
