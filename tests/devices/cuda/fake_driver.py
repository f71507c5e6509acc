# ruff: noqa: N802, N815 - the driver's own names
"""A stand-in for `cuda.bindings.driver`: host memory for a card's, the shim for its kernels.

A call outside the context is refused as the driver would. `answers`: function name to the status
that it gives instead of doing its work, once it was called `spared` times. `held`: handle to what
has not been given back. `clock` is the card's, in nanoseconds: it moves by what `cost` and the
constants say.
"""

import ctypes
import itertools
import threading
from enum import IntEnum
from types import SimpleNamespace

from tests.devices.cuda.shim_card import LOCK, ShimLoaded
from tests.kernels.cuda.shim import room


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


OK = Status.CUDA_SUCCESS
START, EARLY, COPY, STAMP = 2000, 500, 100, 300
"""Nanoseconds: of a launch's start, of one that may begin early; of a copy; of writing a time."""
READ_RATE = 4  # bytes a nanosecond


def cost(symbol, argument):
    """Nanoseconds of a kernel."""
    if symbol != "read_through":
        return 1000 + 10 * len(symbol)
    return int.from_bytes(argument[16:24], "little") * 16 / READ_RATE


ANYWHERE = (
    "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetName",
    "cuDeviceTotalMem", "cuDriverGetVersion", "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease", "cuCtxSetCurrent",
)  # fmt: skip


class Names:
    """Every name of an enumeration stands for itself."""

    def __getattr__(self, name):
        return name


class Numbered(int):
    """A handle or an address, as the bindings give it."""


class FakeDriver:
    CUdevice_attribute = CUstream_flags = CUfunction_attribute = CUlaunchAttributeID = Names()
    CUstreamCaptureMode = CUevent_flags = CUtensorMapDataType = CUtensorMapInterleave = Names()
    CUevent_record_flags = SimpleNamespace(CU_EVENT_RECORD_EXTERNAL=1)
    CUtensorMapSwizzle = CUtensorMapL2promotion = CUtensorMapFloatOOBfill = Names()
    cuuint64_t = cuuint32_t = int
    CUlaunchConfig = SimpleNamespace

    def __init__(self, capability=(9, 0), version=12_090, cards=1, memory=1 << 36):
        self.capability, self.version, self.cards, self.memory = capability, version, cards, memory
        self.allowed = {}  # dynamic shared memory, by function
        self.answers, self.spared, self.calls, self.launched = {}, {}, [], 0
        self.held, self.retained = {}, 0
        self.clock, self.reached = 0, {}
        self._context = threading.local()
        self._numbers, self._capturing = itertools.count(1), {}

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        if not (name.startswith("cu") and name[2:3].isupper()):
            return found

        def call(*arguments):
            self.calls.append(name)
            if name in self.answers and self.calls.count(name) > self.spared.get(name, 0):
                return (self.answers[name],)
            if name not in ANYWHERE and not getattr(self._context, "is_set", False):
                return (Status.CUDA_ERROR_INVALID_CONTEXT,)
            return found(*arguments)

        return call

    def CUlaunchAttribute(self):
        return SimpleNamespace(value=SimpleNamespace())

    def cuInit(self, flags):
        return (OK,)

    def cuDeviceGetCount(self):
        return OK, self.cards

    def cuDeviceGet(self, number):
        return OK, number

    def cuDeviceGetAttribute(self, name, device):
        major, minor = self.capability
        values = {
            "COMPUTE_CAPABILITY_MAJOR": major,
            "COMPUTE_CAPABILITY_MINOR": minor,
            "MULTIPROCESSOR_COUNT": 3,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448,
            "MEMORY_CLOCK_RATE": 3_201_000,
            "GLOBAL_MEMORY_BUS_WIDTH": 6144,
            "CLOCK_RATE": 1_980_000,
        }
        return OK, values[name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuDeviceGetName(self, size, device):
        return OK, b"Pretend 9000\0\0"

    def cuDeviceTotalMem(self, device):
        return OK, self.memory

    def cuDriverGetVersion(self):
        return OK, self.version

    def cuDevicePrimaryCtxRetain(self, device):
        self.retained += 1
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, device):
        self.retained -= 1
        return (OK,)

    def cuCtxSetCurrent(self, context):
        self._context.is_set = context == "context"
        return (OK,)

    def cuMemGetInfo(self):
        return OK, self.memory, self.memory

    def cuStreamCreate(self, flags):
        return OK, self._hold("stream")

    def cuMemAlloc(self, size):
        return OK, self._memory(size)

    def cuMemHostAlloc(self, size, flags):
        return OK, self._memory(size)

    def cuModuleLoadData(self, image):
        return OK, self._hold(ShimLoaded(*image.decode().split()))

    def cuModuleGetFunction(self, module, symbol):
        shim = self.held[module].shim
        if symbol.decode() not in shim.kernels:
            return (Status.CUDA_ERROR_NOT_FOUND,)
        return OK, (shim, symbol.decode())

    def cuModuleGetGlobal(self, module, symbol):
        word = ctypes.c_int.in_dll(self.held[module].shim._library, symbol.decode())
        return OK, ctypes.addressof(word), 4

    def cuFuncSetAttribute(self, function, name, value):
        if name.endswith("MAX_DYNAMIC_SHARED_SIZE_BYTES"):
            self.allowed[function] = value
        return (OK,)

    def cuMemcpyDtoH(self, to, source, size):
        ctypes.memmove(to, source, size)
        return (OK,)

    def cuMemcpyHtoDAsync(self, to, source, size, stream):
        return self._queue(stream, lambda: ctypes.memmove(to, source, size), COPY)

    def cuMemcpyDtoHAsync(self, to, source, size, stream):
        return self._queue(stream, lambda: ctypes.memmove(to, source, size), COPY)

    def cuMemsetD8Async(self, to, byte, size, stream):
        return self._queue(stream, lambda: ctypes.memset(to, byte, size), COPY)

    def cuLaunchKernelEx(self, config, kernel, pointers, extra):
        shim, symbol = kernel
        if config.sharedMemBytes > self.allowed.get(kernel, 0):  # a real one: beyond 48 KB
            return (Status.CUDA_ERROR_INVALID_VALUE,)
        where = ctypes.c_void_p.from_address(pointers).value
        argument = ctypes.string_at(where, shim.kernels[symbol].size)
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        start = EARLY if getattr(config, "numAttrs", 0) else START

        def go():
            with LOCK:
                self.launched += 1
                shim.launch(symbol, grid, block, argument, shared=config.sharedMemBytes)

        return self._queue(config.hStream, go, start + cost(symbol, argument))

    def cuStreamBeginCapture(self, stream, mode):
        self._capturing[stream] = []
        return (OK,)

    def cuStreamEndCapture(self, stream):
        return OK, self._hold(self._capturing.pop(stream))

    def cuGraphInstantiate(self, graph, flags):
        return OK, self._hold(self.held[graph])

    def cuGraphUpload(self, instance, stream):
        return (OK,)

    def cuGraphLaunch(self, instance, stream):
        for work in self.held[instance]:
            work()
        return (OK,)

    def cuStreamSynchronize(self, stream):
        return (OK,)

    def cuEventCreate(self, flags):
        return OK, self._hold("event")

    def cuEventRecord(self, event, stream):
        return (OK,)

    def cuEventRecordWithFlags(self, event, stream, flags):
        assert flags == 1, (
            "without the flag a recording would order its work by it, and not time it"
        )
        return self._queue(stream, lambda: self.reached.update({event: self.clock}), STAMP)

    def cuEventSynchronize(self, event):
        return (OK,)

    def cuEventElapsedTime(self, first, last):
        return OK, (self.reached[last] - self.reached[first]) / 1e6

    def _give_back(self, handle):
        found = self.held.pop(handle, None)
        return (Status.CUDA_ERROR_INVALID_VALUE if found is None else OK,)

    cuMemFree = cuMemFreeHost = cuModuleUnload = cuGraphExecDestroy = _give_back
    cuStreamDestroy = cuEventDestroy = cuGraphDestroy = _give_back

    def _hold(self, thing):
        handle = Numbered(next(self._numbers))
        self.held[handle] = thing
        return handle

    def _memory(self, size):
        made = room(size)
        made[:] = 0xA5
        address = Numbered(made.ctypes.data)
        self.held[address] = made
        return address

    def _queue(self, stream, work, ns):
        def done():
            work()
            self.clock += ns

        if stream in self._capturing:
            self._capturing[stream].append(done)
        else:
            done()
        return (OK,)
