"""The CPU device: C kernels on a pool of threads."""

from muser.devices.cpu.device import CpuDevice
from muser.devices.cpu.runner import CpuRunner
from muser.devices.cpu.threads import default_threads, require_threads

__all__ = ["CpuDevice", "CpuRunner", "default_threads", "require_threads"]
