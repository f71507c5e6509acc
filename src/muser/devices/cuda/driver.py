"""A real card, through NVIDIA's driver API (`cuda.bindings.driver`)."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muser.devices.cuda.card import Address, Facts, Recording, Shape
from muser.errors import DeviceError, DeviceLost
from muser.kernels.nvrtc import bindings

LEAST = (8, 0)  # compute capability: the matrix instructions and copies that the texts use
LEAST_DRIVER = 12_000
OUT_OF_MEMORY = 2
LOST = frozenset({46, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 802, 999})
"""Driver results after which a context answers nothing any more (cuda.h, `CUresult`)."""


def driver_module() -> ModuleType:
    """Raises `DeviceError` where the bindings are not installed."""
    return bindings("driver")


def open_card(number: int = 0) -> "DriverCard":
    """The card `number`. Raises `DeviceError` without a driver or a card that can be used."""
    api, device, facts = find_card(number)
    context = Context(api, device)
    try:
        return DriverCard(api, facts, context)
    except BaseException:
        context.close()
        raise


def find_card(number: int = 0) -> tuple["Api", object, Facts]:
    """Looks the card `number` up without taking anything of it. Raises as `open_card` does."""
    driver = driver_module()
    try:
        (status,) = driver.cuInit(0)
    except Exception as error:  # each release of the bindings has another kind for a missing driver
        raise DeviceError(
            "No NVIDIA driver is here.", "Install the driver of the card, or use --device cpu."
        ) from error
    if int(status):
        raise DeviceError(
            f"The NVIDIA driver finds no card it can use ({status.name}).",
            "Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu.",
        )
    api = Api(driver)
    if number >= api.call(driver.cuDeviceGetCount()):
        raise DeviceError(f"There is no CUDA card {number}.", "Count them with nvidia-smi.")
    device = api.call(driver.cuDeviceGet(number))
    facts = _facts(api, device)
    _check(facts)
    return api, device, facts


class Api:
    """The driver's functions, whose status is looked at."""

    def __init__(self, driver: ModuleType) -> None:
        self.driver = driver

    def call(self, answer: tuple[Any, ...]) -> Any:
        """What a function answered beside its status.

        Raises `DeviceLost` for a status after which the card answers nothing, else `DeviceError`.
        """
        status, *values = answer
        if int(status):
            raise _error(int(status), status.name)
        return values[0] if len(values) == 1 else tuple(values)


def _error(status: int, name: str) -> DeviceError:
    if status in LOST:
        return DeviceLost(
            f"The CUDA card is lost ({name}).",
            "Start the program again: in this process the card answers nothing any more.",
        )
    if status == OUT_OF_MEMORY:
        return DeviceError(
            "The CUDA card is out of memory.",
            "Close what else uses it (nvidia-smi), or ask for a smaller context or chunk.",
        )
    return DeviceError(f"The CUDA driver refused a call ({name}).", "Update the NVIDIA driver.")


def _facts(api: Api, device: object) -> Facts:
    driver, kinds = api.driver, api.driver.CUdevice_attribute

    def attribute(name: str) -> int:
        kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(api.call(driver.cuDeviceGetAttribute(kind, device)))

    def if_told(name: str) -> int:
        """0 where a driver does not tell: what only speed depends on."""
        try:
            return attribute(name)
        except DeviceError:
            return 0

    processors = attribute("MULTIPROCESSOR_COUNT")
    bits = 2 * if_told("MEMORY_CLOCK_RATE") * if_told("GLOBAL_MEMORY_BUS_WIDTH")  # in 1 ms
    return Facts(
        name=api.call(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode(),
        capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        processors=processors,
        memory=int(api.call(driver.cuDeviceTotalMem(device))),
        shared=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        driver=str(int(api.call(driver.cuDriverGetVersion()))),
        bytes_a_cycle=bits / 8 / processors / max(1, if_told("CLOCK_RATE")),
    )


def _check(facts: Facts) -> None:
    if facts.capability < LEAST:
        has, needs = (".".join(map(str, pair)) for pair in (facts.capability, LEAST))
        raise DeviceError(
            f"{facts.name} has compute capability {has}; Muser needs {needs}.",
            "Use --device cpu.",
        )
    if int(facts.driver) < LEAST_DRIVER:
        raise DeviceError(
            f"The NVIDIA driver speaks CUDA {int(facts.driver) // 1000}; Muser needs"
            f" {LEAST_DRIVER // 1000}.",
            "Update the driver.",
        )


class Context:
    """The primary context of a device, retained once and shared by the queues of a card.

    `owned`: what gives back each thing that was taken in it.
    """

    def __init__(self, api: Api, device: object) -> None:
        self._driver, self._device = api.driver, device
        self.handle = api.call(api.driver.cuDevicePrimaryCtxRetain(device))
        self.owned: list[Callable[[], object]] = []
        self._is_open = True

    def close(self) -> None:
        """Memory goes back at once; a lost card's is the driver's to clean up."""
        if not self._is_open:
            return
        self._is_open = False
        self._driver.cuCtxSetCurrent(self.handle)  # a caller's thread may be another
        for give_back in reversed(self.owned):
            give_back()
        self.owned.clear()
        self._driver.cuDevicePrimaryCtxRelease(self._device)


class DriverLibrary:
    """A loaded module."""

    def __init__(self, api: Api, module: object) -> None:
        self._api, self._module = api, module

    def kernel(self, symbol: str, shared: int) -> object:
        """See `Loaded`. Raises `DeviceError` for a symbol that the library lacks."""
        driver = self._api.driver
        function = self._api.call(driver.cuModuleGetFunction(self._module, symbol.encode()))
        if shared:  # 48 KB need no permission, but static memory counts there too
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._api.call(driver.cuFuncSetAttribute(function, limit, shared))
        # A multiprocessor has to be empty to rearrange its memory: all kernels want it alike.
        carveout = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        self._api.call(driver.cuFuncSetAttribute(function, carveout, 100))
        return function

    def size(self, symbol: str) -> int:
        """See `Loaded`. Raises `DeviceError` for a symbol that the library lacks."""
        driver, value = self._api.driver, ctypes.c_int32()
        where, size = self._api.call(driver.cuModuleGetGlobal(self._module, symbol.encode()))
        self._api.call(driver.cuMemcpyDtoH(ctypes.addressof(value), where, size))
        return int(value.value)


class DriverRecording:
    """An instantiated CUDA graph."""

    def __init__(self, api: Api, graph: object, stream: object) -> None:
        self._api, self._graph, self._stream = api, graph, stream

    def play(self) -> None:
        self._api.call(self._api.driver.cuGraphLaunch(self._graph, self._stream))


class DriverClocked:
    """A CUDA graph that writes the time into its events."""

    def __init__(self, card: "DriverCard", recording: Recording, events: Sequence[object]) -> None:
        self._card, self._recording, self._events = card, recording, events

    def play(self) -> list[float]:
        self._recording.play()
        self._card.wait()
        return [self._card.nanoseconds(*pair) for pair in pairwise(self._events)]


class DriverCard:
    """See `Card`: one stream in the primary context."""

    def __init__(self, api: Api, facts: Facts, context: Context) -> None:
        self.facts = facts
        self._api, self._driver, self._context = api, api.driver, context
        self.enter()
        flag = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = api.call(self._driver.cuStreamCreate(flag))
        context.owned.append(partial(self._driver.cuStreamDestroy, self._stream))
        self._overlaps = facts.capability >= (9, 0)
        self._marks: list[object] = []  # events that nobody waits for

    def enter(self) -> None:
        """Work of the calling thread goes to this card."""
        self._api.call(self._driver.cuCtxSetCurrent(self._context.handle))

    def free_bytes(self) -> int:
        free, _ = self._api.call(self._driver.cuMemGetInfo())
        return int(free)

    def allocate(self, size: int) -> Address:
        found = Address(int(self._api.call(self._driver.cuMemAlloc(max(size, 16)))))
        self._context.owned.append(partial(self._driver.cuMemFree, found))
        self.fill(found, max(size, 16), 0)
        return found

    def pinned(self, size: int) -> NDArray[np.uint8]:
        where = int(self._api.call(self._driver.cuMemHostAlloc(max(size, 16), 0)))
        self._context.owned.append(partial(self._driver.cuMemFreeHost, where))
        memory = (ctypes.c_uint8 * max(size, 16)).from_address(where)
        ctypes.memset(where, 0, max(size, 16))
        return np.ctypeslib.as_array(memory)[:size]

    def library(self, image: bytes) -> DriverLibrary:
        module = self._api.call(self._driver.cuModuleLoadData(image))
        self._context.owned.append(partial(self._driver.cuModuleUnload, module))
        return DriverLibrary(self._api, module)

    def launch(self, kernel: object, shape: Shape, args: ctypes.Structure) -> None:
        driver = self._driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block, 1, 1
        config.sharedMemBytes, config.hStream = shape.shared, self._stream
        if self._overlaps:
            attribute = driver.CUlaunchAttribute()
            ids = driver.CUlaunchAttributeID
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        self._api.call(driver.cuLaunchKernelEx(config, kernel, ctypes.addressof(pointers), 0))

    def upload(self, to: Address, source: NDArray[np.uint8]) -> None:
        copy = self._driver.cuMemcpyHtoDAsync
        self._api.call(copy(to, source.ctypes.data, source.nbytes, self._stream))

    def download(self, to: NDArray[np.uint8], source: Address) -> None:
        copy = self._driver.cuMemcpyDtoHAsync
        self._api.call(copy(to.ctypes.data, source, to.nbytes, self._stream))

    def fill(self, to: Address, size: int, byte: int) -> None:
        self._api.call(self._driver.cuMemsetD8Async(to, byte, size, self._stream))

    def record(self, work: Callable[[], None]) -> Recording:
        driver, call = self._driver, self._api.call
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with ExitStack() as done:
            call(driver.cuStreamBeginCapture(self._stream, mode))
            try:
                work()
            finally:
                graph = call(driver.cuStreamEndCapture(self._stream))
                done.callback(driver.cuGraphDestroy, graph)
            instance = call(driver.cuGraphInstantiate(graph, 0))
            self._context.owned.append(partial(driver.cuGraphExecDestroy, instance))
            call(driver.cuGraphUpload(instance, self._stream))
        return DriverRecording(self._api, instance, self._stream)

    def wait(self) -> None:
        self._api.call(self._driver.cuStreamSynchronize(self._stream))

    def clocked(self, pieces: Sequence[Callable[[], None]], *, overlaps: bool) -> "DriverClocked":
        driver, call = self._driver, self._api.call
        events = []
        for _ in range(len(pieces) + 1):
            events.append(call(driver.cuEventCreate(0)))
            self._context.owned.append(partial(driver.cuEventDestroy, events[-1]))
        # External: the recording itself writes the time down, each time that it is played.
        flag = int(driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL)

        def work() -> None:
            call(driver.cuEventRecordWithFlags(events[0], self._stream, flag))
            for piece, event in zip(pieces, events[1:], strict=True):
                piece()
                call(driver.cuEventRecordWithFlags(event, self._stream, flag))

        before, self._overlaps = self._overlaps, self._overlaps and overlaps
        try:
            recording = self.record(work)
        finally:
            self._overlaps = before
        return DriverClocked(self, recording, events)

    def nanoseconds(self, first: object, last: object) -> float:
        """From one event to another, both of which have been reached."""
        return float(self._api.call(self._driver.cuEventElapsedTime(first, last))) * 1e6

    def mark(self) -> Callable[[], None]:
        """An event is used again once it was waited for, and given back with the card."""
        driver, call = self._driver, self._api.call
        if not self._marks:
            flag = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
            made = call(driver.cuEventCreate(flag))
            self._context.owned.append(partial(driver.cuEventDestroy, made))
            self._marks.append(made)
        event = self._marks.pop()
        call(driver.cuEventRecord(event, self._stream))

        def reached() -> None:
            call(driver.cuEventSynchronize(event))
            self._marks.append(event)

        return reached

    def side(self) -> "DriverCard":
        return DriverCard(self._api, self.facts, self._context)

    def close(self) -> None:
        """Gives back what all queues of the card have taken."""
        self._context.close()
