"""Devices by name."""

from muser.devices.cpu import CpuDevice
from muser.devices.device import Device
from muser.devices.oracle import OracleDevice
from muser.errors import DeviceError

NAMES = (CpuDevice.name, OracleDevice.name)


def open_device(name: str, *, threads: int | None = None) -> Device:
    """The device called `name`; `threads` matters to `cpu` alone.

    Raises `DeviceError` if there is none, or if it fails the conformance vectors.
    """
    if name == CpuDevice.name:
        return CpuDevice(threads)
    if name == OracleDevice.name:
        return OracleDevice()
    raise DeviceError(f"There is no device {name!r}.", f"Known: {', '.join(NAMES)}.")
