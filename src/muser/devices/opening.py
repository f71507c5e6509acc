"""Devices by name."""

from muser.devices.device import Device
from muser.devices.oracle import OracleDevice
from muser.errors import DeviceError

NAMES = ("cpu", "cuda", OracleDevice.name)


def open_device(name: str, *, threads: int | None = None) -> Device:
    """The device called `name`; `threads` matters to `cpu` alone.

    Raises `DeviceError` if there is none, or if it fails the conformance vectors, and `LimitError`
    for more threads than it has room for.
    """
    if name == "cpu":
        from muser.devices.cpu import CpuDevice

        return CpuDevice(threads)
    if name == "cuda":
        from muser.devices.cuda import CudaDevice

        return CudaDevice()
    if name == OracleDevice.name:
        return OracleDevice()
    raise _unknown(name)


def require_device(name: str) -> None:
    """Raises `DeviceError` where a device cannot be opened for want of a driver, a card or a
    compiler: quick, so that no model is fetched for nothing.
    """
    if name not in NAMES:
        raise _unknown(name)
    if name == "cuda":
        from muser.devices.cuda.driver import find_card
        from muser.kernels.nvrtc import Nvrtc

        find_card()
        Nvrtc()


def _unknown(name: str) -> DeviceError:
    return DeviceError(f"There is no device {name!r}.", f"Known: {', '.join(NAMES)}.")
