"""Devices: a graph and its weights in, a runner out."""

from muser.devices.device import Device, Limits, Runner, Step
from muser.errors import DeviceError

NAMES = ("cpu", "oracle")


def open_device(name: str, *, threads: int | None = None) -> Device:
    """The device `name`; `threads` is for the CPU. Raises `DeviceError` if it is not here."""
    if name == "cpu":
        from muser.devices.cpu import CpuDevice

        return CpuDevice(threads=threads)
    if name == "oracle":
        from muser.devices.oracle import OracleDevice

        return OracleDevice()
    raise DeviceError(f"There is no device {name!r}.", f"Devices: {', '.join(NAMES)}.")


__all__ = ["NAMES", "Device", "Limits", "Runner", "Step", "open_device"]
