"""Devices by name, and what importing them costs."""

import subprocess
import sys

import pytest

import muser.devices
from muser.devices import NAMES, open_device
from muser.errors import DeviceError


def test_open_device():
    device = open_device("cpu", threads=2)
    assert (device.name, device.threads) == ("cpu", 2)
    assert open_device("oracle").name == "oracle"
    with pytest.raises(DeviceError, match="no device 'abacus'"):
        open_device("abacus")
    assert [open_device(name).name for name in NAMES] == list(NAMES)


def test_every_public_name_is_there():
    assert all(getattr(muser.devices, name) for name in muser.devices.__all__)
    with pytest.raises(AttributeError, match="abacus"):
        _ = muser.devices.abacus


def test_the_protocol_does_not_import_the_kernels():
    program = "import sys, muser.devices; assert 'muser.kernels' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
