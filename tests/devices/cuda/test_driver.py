"""A card through the driver's functions: what is refused and how, and that nothing is kept."""

import gc
import sys
import threading
from functools import partial

import numpy as np
import pytest

from muser.devices import Limits
from muser.devices.cuda import CudaRunner
from muser.devices.cuda import device as devices
from muser.devices.cuda.driver import find_card, open_card
from muser.errors import ArithmeticFault, Cancelled, DeviceError, DeviceLost, LimitError
from muser.kernels import Shelf
from tests.devices.cuda.fake_driver import FakeDriver, Status
from tests.devices.cuda.shim_card import shim_library
from tests.devices.cuda.small import LENGTH, step


def test_no_bindings(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(DeviceError, match=r"bindings are not here.*pip install 'muser\[cuda\]'"):
        open_card()


def test_no_driver_library(fake, monkeypatch):
    def missing(flags):
        raise RuntimeError("libcuda.so.1 is not here")

    monkeypatch.setattr(FakeDriver, "cuInit", lambda self, flags: missing(flags))
    with pytest.raises(DeviceError, match=r"No NVIDIA driver is here\. Install the driver"):
        open_card()


@pytest.mark.parametrize(
    ("fake_card", "answers", "sentence"),
    [
        ({}, {"cuInit": Status.CUDA_ERROR_NO_DEVICE}, r"no card it can use \(CUDA_ERROR_NO_DEVICE"),
        ({"cards": 0}, {}, "no CUDA card 0"),
        ({"capability": (7, 5)}, {}, r"Pretend 9000 has compute capability 7\.5; Muser needs 8\.0"),
        ({"version": 11_080}, {}, "driver speaks CUDA 11; Muser needs 12"),
        ({}, {"cuDeviceTotalMem": Status.CUDA_ERROR_INVALID_VALUE}, "refused a call"),
        ({}, {"cuDevicePrimaryCtxRetain": Status.CUDA_ERROR_OUT_OF_MEMORY}, "out of memory"),
    ],
)
def test_a_card_that_cannot_be_used(monkeypatch, fake_card, answers, sentence):
    fake = FakeDriver(**fake_card)
    fake.answers.update(answers)
    monkeypatch.setattr("muser.devices.cuda.driver.driver_module", lambda: fake)
    with pytest.raises(DeviceError, match=sentence):
        open_card()
    assert not fake.held
    assert fake.retained == 0


def test_there_is_no_such_card(fake):
    with pytest.raises(DeviceError, match=r"no CUDA card 3\. Count them"):
        open_card(3)


def test_what_memory_sends_in_a_cycle(fake):
    """The fake card: 2 · 3,201 MHz · 768 bytes for 3 multiprocessors of 1,980 MHz."""
    assert find_card()[2].bytes_a_cycle == 2 * 3201 * 768 / 3 / 1980


def test_a_driver_that_does_not_tell_clocks(fake, monkeypatch):
    told = FakeDriver.cuDeviceGetAttribute

    def attribute(self, name, device):
        if "CLOCK" in name or "WIDTH" in name:
            return (Status.CUDA_ERROR_INVALID_VALUE,)
        return told(self, name, device)

    monkeypatch.setattr(FakeDriver, "cuDeviceGetAttribute", attribute)
    assert find_card()[2].bytes_a_cycle == 0


def test_a_model_through_the_driver(fake, runner, model):
    """Every launch, copy and recording: the oracle's bytes come out."""
    _, _, ids, expected = model
    for first, last in ((0, 17), (17, 18), (18, 21), (21, 24)):
        made = runner.forward(step(ids, first, last))
        assert made.tobytes() == expected[first:last].tobytes()
    assert fake.launched > 50


def test_everything_is_given_back(fake, model):
    graph, weights, ids, _ = model
    card = open_card()
    runner = CudaRunner(card, shim_library("sm_90a"), graph, weights, Limits(LENGTH, 1, 128))
    runner.forward(step(ids, 0, 2))
    assert fake.held
    closing = threading.Thread(target=runner.close)  # the context is another thread's
    closing.start()
    closing.join()
    runner.close()
    assert not fake.held
    assert fake.retained == 0
    runner.resume()
    with pytest.raises(DeviceError, match="is closed"):
        runner.forward(step(ids, 2, 3))


@pytest.fixture
def device(fake, monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "load_cuda", lambda architecture, _: shim_library(architecture))
    monkeypatch.setattr(devices, "require_conformance", lambda *_: None)
    return devices.CudaDevice(0, Shelf(tmp_path))


def test_a_device_that_is_gone_keeps_nothing(fake, device, tmp_path):
    """Nor one that never came to be, for want of a library here."""
    held = dict(fake.held)
    another = devices.CudaDevice(0, Shelf(tmp_path))
    assert fake.retained == 2
    del another
    gc.collect()
    assert (fake.held, fake.retained) == (held, 1)

    def missing(architecture, shelf):
        raise DeviceError("There is no compiler.", "Install one.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "load_cuda", missing)
        with pytest.raises(DeviceError, match="There is no compiler"):
            devices.CudaDevice(0, Shelf(tmp_path))
    gc.collect()
    assert (fake.held, fake.retained) == (held, 1)


def test_a_model_too_large_is_refused_with_the_sum_before_anything_is_taken(fake, device, model):
    graph, weights, _, _ = model
    fake.memory, before = 300 << 20, dict(fake.held)
    with pytest.raises(LimitError) as refused:
        device.load(graph, weights, Limits(1 << 20, 4, 512))
    assert "weights 0.00 + staging 0.00 + caches" in refused.value.sentence
    assert "GB of Pretend 9000, which has 0.05 GB free" in refused.value.sentence
    assert "cuMemAlloc" not in fake.calls
    assert "cuModuleLoadData" not in fake.calls
    assert fake.held == before
    assert fake.retained == 1


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuMemHostAlloc", "cuGraphInstantiate"])
def test_out_of_memory_in_spite_of_the_plan(fake, device, model, call):
    graph, weights, _, _ = model
    fake.answers[call] = Status.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(DeviceError, match=r"out of memory\. Close what else uses it"):
        device.load(graph, weights, Limits(LENGTH, 1, 128))


LOADING = (
    "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate", "cuMemGetInfo", "cuMemAlloc",
    "cuMemHostAlloc", "cuMemsetD8Async", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoH",
    "cuModuleLoadData", "cuModuleGetFunction", "cuModuleGetGlobal", "cuLaunchKernelEx",
    "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuStreamSynchronize",
    "cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphUpload",
)  # fmt: skip
"""What a load asks of the driver, and may be refused."""


def test_what_a_load_asks_of_the_driver(fake, device, model):
    graph, weights, _, _ = model
    fake.calls.clear()
    device.load(graph, weights, Limits(LENGTH, 1, 128))
    about = "cuInit", "cuDeviceGet", "cuDriverGetVersion", "cuDeviceTotalMem", "cuFuncSetAttribute"
    asked = {call for call in fake.calls if not call.startswith(about)}
    assert asked == {*LOADING, "cuGraphDestroy"}


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("call", LOADING)
def test_a_load_that_fails_keeps_nothing(fake, device, model, call, last):
    """Whichever call is refused, the first of its name or the last."""
    graph, weights, _, _ = model
    load = partial(device.load, graph, weights, Limits(LENGTH, 1, 128))
    held, retained = dict(fake.held), fake.retained
    fake.calls.clear()
    runner = load()
    fake.spared[call] = fake.calls.count(call) - 1 if last else 0
    runner.close()
    fake.calls.clear()
    fake.answers[call] = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match="refused a call"):
        load()
    assert (fake.held, fake.retained) == (held, retained)


def test_no_request_lowers_or_records_or_takes_anything(fake, device, model):
    """Not the first one of any bucket either: all of that belongs to the loading."""
    _, _, ids, expected = model
    graph, weights, _, _ = model
    runner = device.load(graph, weights, Limits(LENGTH, 1, 128))
    fake.calls.clear()
    for first, last in ((0, 17), (0, 1), (1, 4), (4, 9)):
        for wanted in (None, [0], [last - first - 1], []):
            now = step(ids, first, last, wanted)
            rows = now.outputs + first
            assert runner.forward(now).tobytes() == expected[rows].tobytes()
            assert runner.choose(now).tolist() == expected[rows].argmax(axis=1).tolist()
    assert set(fake.calls) == {
        "cuCtxSetCurrent", "cuGraphLaunch", "cuStreamSynchronize", "cuMemcpyDtoHAsync"
    }  # fmt: skip
    runner.close()


def test_a_refused_call_names_its_status(fake, device, model):
    graph, weights, _, _ = model
    fake.answers["cuModuleLoadData"] = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match=r"refused a call \(CUDA_ERROR_INVALID_VALUE\)"):
        device.load(graph, weights, Limits(LENGTH, 1, 128))


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuStreamSynchronize"])
def test_a_lost_card_answers_nothing_any_more(fake, runner, model, call):
    """Also when its functions seem to work again: what they would answer is nobody's."""
    _, _, ids, _ = model
    runner.forward(step(ids, 0, 1))
    fake.answers[call] = Status.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceLost, match=r"lost \(CUDA_ERROR_ILLEGAL_ADDRESS\)"):
        runner.forward(step(ids, 1, 2))
    fake.answers.clear()
    launched = fake.launched
    for ask in (
        lambda: runner.forward(step(ids, 1, 2)),
        lambda: runner.choose(step(ids, 1, 2)),
        lambda: runner.play(step(ids, 1, 2)),
        lambda: runner.timed(step(ids, 1, 2)),
        lambda: runner.reading_times(64, 1),
        lambda: runner.empty_launch(1),
        lambda: runner.export_rows(0, 0, 0, 1),
        lambda: runner.get_rows("x", 1),
        lambda: runner.put_rows("x", np.zeros((1, 1), np.float32)),
    ):
        runner.cancel()
        runner.resume()
        with pytest.raises(
            DeviceLost, match=r"lost \(CUDA_ERROR_ILLEGAL_ADDRESS\)\. Start the program again"
        ):
            ask()
    assert fake.launched == launched
    runner.close()
    assert not fake.held


def test_a_refused_call_that_is_no_loss_latches_nothing(fake, runner, model):
    _, _, ids, expected = model
    fake.answers["cuGraphLaunch"] = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError) as refused:
        runner.forward(step(ids, 0, 1))
    assert not isinstance(refused.value, DeviceLost)
    fake.answers.clear()
    assert runner.forward(step(ids, 0, 1)).tobytes() == expected[:1].tobytes()


def test_cancel_before_and_between_steps(fake, runner, model):
    _, _, ids, expected = model
    runner.cancel()
    launched = fake.launched
    with pytest.raises(Cancelled):
        runner.forward(step(ids, 0, 1))
    assert fake.launched == launched
    runner.resume()
    runner.forward(step(ids, 0, 2))
    runner.cancel()
    with pytest.raises(Cancelled):
        runner.choose(step(ids, 2, 3))
    runner.resume()
    assert runner.forward(step(ids, 2, 3)).tobytes() == expected[2:3].tobytes()


def test_cancel_within_a_step(fake, runner, model):
    """A chunk's body and its tails are played apart: what was asked for meanwhile stops it."""
    _, _, ids, expected = model
    plays = fake.calls.count("cuGraphLaunch")
    whole = FakeDriver.cuGraphLaunch

    def last(self, instance, stream):
        runner.cancel()
        return whole(self, instance, stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeDriver, "cuGraphLaunch", last)
        with pytest.raises(Cancelled):
            runner.forward(step(ids, 0, 17))
    assert fake.calls.count("cuGraphLaunch") == plays + 1
    runner.resume()
    assert runner.forward(step(ids, 0, 17)).tobytes() == expected[:17].tobytes()


def test_two_callers_at_once(fake, runner, model):
    _, _, ids, expected = model
    inside, go_on, whole = threading.Event(), threading.Event(), FakeDriver.cuGraphLaunch
    answers = []

    def slow(self, instance, stream):
        inside.set()
        assert go_on.wait(60)
        return whole(self, instance, stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeDriver, "cuGraphLaunch", slow)
        first = threading.Thread(target=lambda: answers.append(runner.forward(step(ids, 0, 1))))
        first.start()
        assert inside.wait(60)
        with pytest.raises(DeviceError, match=r"already computing.*one thread at a time"):
            runner.forward(step(ids, 0, 1))
        go_on.set()
        first.join()
    assert answers[0].tobytes() == expected[:1].tobytes()


def test_rows_that_are_not_finite_fail_and_the_next_step_is_clean(runner, model):
    graph, _, ids, expected = model
    spec = graph.caches[0]
    rows = np.zeros((1, spec.kv_heads, spec.head_dim), np.float16)
    rows[0, 0, 3] = np.inf
    with pytest.raises(ArithmeticFault, match="K or V for layer 0 is not finite"):
        runner.import_rows(0, 0, 0, rows, np.zeros_like(rows))
    assert runner.forward(step(ids, 0, 1)).tobytes() == expected[:1].tobytes()
