"""The CUDA device."""

from muser.devices.cuda.device import CudaDevice
from muser.devices.cuda.runner import CudaRunner

__all__ = ["CudaDevice", "CudaRunner"]
