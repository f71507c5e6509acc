"""Devices by name, and what importing them costs."""

import subprocess
import sys
from unittest.mock import Mock

import pytest

import muser.devices
from muser.devices import NAMES, open_device, require_device
from muser.errors import DeviceError

NO_DRIVER = DeviceError("No NVIDIA driver is here.", "Use --device cpu.")


def test_open_device():
    device = open_device("cpu", threads=2)
    assert (device.name, device.threads) == ("cpu", 2)
    assert open_device("oracle").name == "oracle"
    with pytest.raises(DeviceError, match="no device 'abacus'"):
        open_device("abacus")


def test_a_device_is_required_before_it_is_opened(monkeypatch):
    for name in ("cpu", "oracle"):
        require_device(name)
        assert open_device(name).name == name
    with pytest.raises(DeviceError, match="no device 'abacus'"):
        require_device("abacus")
    monkeypatch.setattr("muser.devices.cuda.driver.driver_module", Mock(side_effect=NO_DRIVER))
    for ask in (require_device, open_device):
        with pytest.raises(DeviceError, match="No NVIDIA driver"):
            ask("cuda")
    assert set(NAMES) == {"cpu", "cuda", "oracle"}


def test_every_public_name_is_there():
    assert all(getattr(muser.devices, name) for name in muser.devices.__all__)
    with pytest.raises(AttributeError, match="abacus"):
        _ = muser.devices.abacus


def test_the_protocol_does_not_import_the_kernels():
    program = "import sys, muser.devices; assert 'muser.kernels' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
