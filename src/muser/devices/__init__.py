"""Devices: where tapes are recorded and played. One's own package is imported when asked for."""

from typing import TYPE_CHECKING

from muser.devices.device import Device, LastWords, Limits, Runner, Step
from muser.devices.opening import NAMES, open_device, require_device
from muser.devices.oracle import OracleDevice

if TYPE_CHECKING:
    from muser.devices.cpu import CpuDevice, CpuRunner, default_threads, require_threads

__all__ = [
    "NAMES",
    "CpuDevice",
    "CpuRunner",
    "Device",
    "LastWords",
    "Limits",
    "OracleDevice",
    "Runner",
    "Step",
    "default_threads",
    "open_device",
    "require_device",
    "require_threads",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from muser.devices import cpu

    return getattr(cpu, name)
