"""The CPU device: C kernels on a pool of threads."""

from muser.devices.cpu.device import CpuDevice, default_threads
from muser.devices.cpu.runner import CpuRunner

__all__ = ["CpuDevice", "CpuRunner", "default_threads"]
