"""One NVIDIA card: compile with NVRTC, move arrays, launch, time. Needs `cuda-bindings`, NVRTC."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cuda.bindings import driver, nvrtc
from numpy.typing import DTypeLike, NDArray

HERE = Path(__file__).parent
FLAGS = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "-std=c++17")
REPLAYS = 25


class Pointer(int):
    """An address on the card."""


def call(result: tuple):  # type: ignore[type-arg]
    """What a binding returned, without its code; raises on any other code than success."""
    code, *values = result
    if int(code):
        raise RuntimeError(f"the driver or compiler answered {code!r}")
    return values[0] if len(values) == 1 else tuple(values)


def build(names: Sequence[str], architecture: str = "sm_90a", **defines: int) -> bytes:
    """The machine code of some texts of this folder, `common` before them."""
    text = "\n".join((HERE / f"{name}.cu").read_text() for name in ("common", *names))
    program = call(nvrtc.nvrtcCreateProgram(text.encode(), b"probe.cu", 0, [], []))
    flags = [f"--gpu-architecture={architecture}", *FLAGS]
    flags += [f"-D{name}={value}" for name, value in defines.items()]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    if int(code):
        log = b" " * (call(nvrtc.nvrtcGetProgramLogSize(program)) + 1)
        call(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    image = b" " * call(nvrtc.nvrtcGetCUBINSize(program))
    call(nvrtc.nvrtcGetCUBIN(program, image))
    return image


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one launch: median of the replays, and the two quartiles."""

    median: float
    low: float
    high: float


class Card:
    """The first card of the machine, one stream."""

    def __init__(self) -> None:
        call(driver.cuInit(0))
        device = call(driver.cuDeviceGet(0))
        self._context = call(driver.cuDevicePrimaryCtxRetain(device))
        call(driver.cuCtxSetCurrent(self._context))
        flag = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = call(driver.cuStreamCreate(flag))
        self._owned: list[Pointer] = []
        attribute = driver.CUdevice_attribute
        self.processors = call(
            driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)
        )
        self.name = call(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
        version = call(nvrtc.nvrtcVersion())
        self.software = f"driver API {call(driver.cuDriverGetVersion())}, NVRTC {version}"

    def empty(self, size: int) -> Pointer:
        """`size` bytes, all of them 0xff: a word nobody writes stays a NaN."""
        pointer = Pointer(int(call(driver.cuMemAlloc(size))))
        self._owned.append(pointer)
        self.poison(pointer, size)
        return pointer

    def poison(self, pointer: Pointer, size: int, byte: int = 0xFF) -> None:
        call(driver.cuMemsetD8Async(pointer, byte, size, self._stream))

    def zeros(self, size: int) -> Pointer:
        pointer = self.empty(size)
        self.poison(pointer, size, 0)
        return pointer

    def put(self, array: NDArray[np.generic]) -> Pointer:
        array = np.ascontiguousarray(array)
        pointer = self.empty(array.nbytes)
        self.wait()
        call(driver.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
        return pointer

    def copy(self, pointer: Pointer, size: int) -> Pointer:
        other = self.empty(size)
        call(driver.cuMemcpyDtoDAsync(other, pointer, size, self._stream))
        return other

    def get(self, pointer: Pointer, shape: Sequence[int], dtype: DTypeLike) -> NDArray[np.generic]:
        array = np.empty(shape, dtype)
        self.wait()
        call(driver.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
        return array

    def wait(self) -> None:
        call(driver.cuStreamSynchronize(self._stream))

    def release(self) -> None:
        """Free every array taken so far."""
        self.wait()
        for pointer in self._owned:
            call(driver.cuMemFree(pointer))
        self._owned.clear()

    def kernels(self, image: bytes, **shared: int) -> dict[str, object]:
        """The named kernels of an image; the value is the dynamic shared memory that each needs."""
        module = call(driver.cuModuleLoadData(image))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        found = {}
        for name, size in shared.items():
            found[name] = call(driver.cuModuleGetFunction(module, name.encode()))
            if size > 48 * 1024:
                call(driver.cuFuncSetAttribute(found[name], limit, size))
        return found

    def launch(
        self,
        kernel: object,
        grid: tuple[int, ...],
        block: int,
        *arguments: object,
        shared: int = 0,
        early: bool = False,
    ) -> None:
        """Queue one kernel. `early`: it may begin before the one before it has ended."""
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes, config.hStream = shared, self._stream
        if early:
            attribute = driver.CUlaunchAttribute()
            ids = driver.CUlaunchAttributeID
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        kept = [_value(a) for a in arguments]
        addresses = (ctypes.c_void_p * len(kept))(*[_address(a) for a in kept])
        call(driver.cuLaunchKernelEx(config, kernel, ctypes.addressof(addresses), 0))

    def time(self, work: Callable[[], None], launches: int) -> Timing:
        """Seconds a launch: `work` queues `launches` of them, captured once and replayed."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call(driver.cuStreamBeginCapture(self._stream, mode))
        work()
        graph = call(driver.cuStreamEndCapture(self._stream))
        replay = call(driver.cuGraphInstantiate(graph, 0))
        before, after = (call(driver.cuEventCreate(0)) for _ in range(2))
        times = []
        for turn in range(REPLAYS + 3):
            call(driver.cuEventRecord(before, self._stream))
            call(driver.cuGraphLaunch(replay, self._stream))
            call(driver.cuEventRecord(after, self._stream))
            self.wait()
            if turn >= 3:
                times.append(call(driver.cuEventElapsedTime(before, after)) * 1e-3 / launches)
        call(driver.cuGraphExecDestroy(replay))
        low, median, high = np.quantile(times, (0.25, 0.5, 0.75))
        return Timing(float(median), float(low), float(high))

    def tensor_map(
        self, pointer: Pointer, rows: int, width: int, box: int, element: int = 2
    ) -> object:
        """A map over [rows][width], boxes of 128 rows: f16 with the 128-byte exchange, or bytes."""
        wide, narrow, kinds = driver.cuuint64_t, driver.cuuint32_t, driver.CUtensorMapDataType
        swizzles, is_half = driver.CUtensorMapSwizzle, element == 2
        return call(
            driver.cuTensorMapEncodeTiled(
                kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                if is_half
                else kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
                2,
                int(pointer),
                [wide(width), wide(rows)],
                [wide(width * element)],
                [narrow(box), narrow(128)],
                [narrow(1), narrow(1)],
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzles.CU_TENSOR_MAP_SWIZZLE_128B
                if is_half
                else swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
                driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        )


def _value(argument: object) -> object:
    if isinstance(argument, Pointer):
        return ctypes.c_void_p(int(argument))
    if isinstance(argument, np.floating):
        return ctypes.c_float(float(argument))
    return ctypes.c_int(argument) if isinstance(argument, int) else argument


def _address(value: object) -> int:
    if isinstance(value, ctypes._SimpleCData):
        return ctypes.addressof(value)
    return int(value.getPtr())  # type: ignore[attr-defined]
