"""Devices: where tapes are recorded and played."""

from muser.devices.cpu import CpuDevice, default_threads
from muser.devices.device import Device, Limits, Runner, Step
from muser.devices.opening import NAMES, open_device
from muser.devices.oracle import OracleDevice
from muser.devices.runner import CpuRunner

__all__ = [
    "NAMES",
    "CpuDevice",
    "CpuRunner",
    "Device",
    "Limits",
    "OracleDevice",
    "Runner",
    "Step",
    "default_threads",
    "open_device",
]
