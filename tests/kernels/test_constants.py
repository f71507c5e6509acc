"""What texts and package both say is compared when a library is loaded."""

import pytest

from muser.errors import DeviceError
from muser.kernels import constants


@pytest.mark.parametrize("name", sorted(constants.MIRRORED))
def test_a_constant_that_differs_is_refused(libraries, monkeypatch, name):
    handle = libraries["c"].handle
    other = {**constants.MIRRORED, name: constants.MIRRORED[name] + 1}
    monkeypatch.setattr(constants, "MIRRORED", other)
    with pytest.raises(DeviceError, match=f"The c kernels say {name} is"):
        constants.read_constants(handle, "c")


def test_all_sets_report_the_same(libraries):
    """All but what a set chooses for itself."""
    tables = [dict(constants.read_table(library.handle)) for library in libraries.values()]
    for table in tables:
        assert table.pop("PACKED") in (0, 1)
        assert table.pop("STRIP") in (4, 16)
    assert all(table == tables[0] for table in tables)
    assert len(tables[0]) == len(constants.MIRRORED) + len(constants.FORMATS) + len(constants.Constants.__slots__)
