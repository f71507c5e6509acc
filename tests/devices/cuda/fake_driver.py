"""A stand-in for `cuda.bindings.driver`: host memory for a card's, the shim for its kernels.

A call outside the context, of memory that was given back, or with a stale handle is refused as the
driver would. `answers`: function name to the status it gives instead of doing its work.
"""

import itertools
import threading
from enum import IntEnum


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_TIMEOUT = 702


OK = Status.CUDA_SUCCESS
NAMES = "CUDeviceAttribute CUstream_flags CUfunction_attribute CUlaunchAttributeID"


class Names:
    """Every name of an enumeration stands for itself."""

    def __getattr__(self, name):
        return name


class FakeDriver:
    CUdevice_attribute = CUstream_flags = CUfunction_attribute = CUlaunchAttributeID = Names()
    CUstreamCaptureMode = CUevent_flags = CUtensorMapDataType = CUtensorMapInterleave = Names()
    CUtensorMapSwizzle = CUtensorMapL2promotion = CUtensorMapFloatOOBfill = Names()
    cuuint64_t = cuuint32_t = staticmethod(int)

    def __init__(self, capability=(9, 0), version=12_090, cards=1, memory=1 << 36):
        self.capability, self.version, self.cards, self.memory = capability, version, cards, memory
        self.answers, self.calls = {}, []
        self.held, self.context, self.retained = {}, threading.local(), 0
        self.numbers, self.capturing = itertools.count(1), {}

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        if not name.startswith("cu") or name.startswith("cuuint"):
            return found

        def call(*arguments):
            self.calls.append(name)
            if name in self.answers:
                return (self.answers[name],)
            if name in CONTEXTUAL and not getattr(self.context, "is_set", False):
                return (Status.CUDA_ERROR_INVALID_CONTEXT,)
            return found(*arguments)

        return call

    def attribute(self, name):
        major, minor = self.capability
        return {
            "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": major,
            "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": minor,
            "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": 3,
            "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448,
        }[name]

    def cuInit(self, flags):  # noqa: N802 - the driver's own names, here and below
        return (OK,)

    def cuDeviceGetCount(self):  # noqa: N802
        return OK, self.cards

    def cuDeviceGet(self, number):  # noqa: N802
        return OK, number

    def cuDeviceGetAttribute(self, name, device):  # noqa: N802
        return OK, self.attribute(name)

    def cuDeviceGetName(self, size, device):  # noqa: N802
        return OK, b"Pretend 9000\0\0"

    def cuDeviceTotalMem(self, device):  # noqa: N802
        return OK, self.memory

    def cuDriverGetVersion(self):  # noqa: N802
        return OK, self.version
