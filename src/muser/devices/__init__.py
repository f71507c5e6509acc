"""Devices: where tapes are recorded and played."""

from muser.devices.cpu import CpuDevice, CpuRunner, default_threads
from muser.devices.device import Device, Limits, Runner, Step

__all__ = ["CpuDevice", "CpuRunner", "Device", "Limits", "Runner", "Step", "default_threads"]
