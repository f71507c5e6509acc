"""`muser run --device` on a machine that lacks the device: known before a model is fetched."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from outcome import Command

from muser.cli import run
from muser.devices.cuda import driver


def no_fetch(*_: object, **__: object) -> None:
    raise AssertionError("a model is asked for")


def missing(_: int) -> tuple[int]:
    raise RuntimeError("libcuda.so.1 cannot be loaded")


def no_card(_: int) -> tuple[object]:
    class Status(int):
        name = "CUDA_ERROR_NO_DEVICE"

    return (Status(100),)


@pytest.mark.parametrize(
    ("init", "sentence", "remedy"),
    [
        (
            missing,
            "No NVIDIA driver is here.",
            "Install the driver of the card, or use --device cpu.",
        ),
        (
            no_card,
            "The NVIDIA driver finds no card it can use (CUDA_ERROR_NO_DEVICE).",
            "Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu.",
        ),
    ],
)
def test_no_cuda_device(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    init: Callable[[int], tuple[object]],
    sentence: str,
    remedy: str,
) -> None:
    monkeypatch.setattr(run, "obtained", no_fetch)
    monkeypatch.setattr(driver, "driver_module", lambda: SimpleNamespace(cuInit=init))
    outcome = command("run", "--device", "cuda", "Hello")
    assert (outcome.status, outcome.out) == (5, "")
    assert outcome.err.splitlines() == [f"error: {sentence}", remedy]


def test_no_such_device(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "obtained", no_fetch)
    outcome = command("run", "--device", "abacus", "Hello")
    assert outcome.status == 5
    assert "no device 'abacus'" in outcome.err
