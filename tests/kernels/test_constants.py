"""What texts and package both say is compared when a library is loaded."""

import pytest

from muser.errors import DeviceError
from muser.kernels import constants


@pytest.mark.parametrize("name", sorted(constants.MIRRORED))
def test_a_constant_that_differs_is_refused(libraries, monkeypatch, name):
    table = constants.read_table(libraries["c"].handle)
    other = {**constants.MIRRORED, name: constants.MIRRORED[name] + 1}
    monkeypatch.setattr(constants, "MIRRORED", other)
    with pytest.raises(DeviceError, match=f"The c kernels say {name} is"):
        constants.read_constants(table, "c")


def test_all_sets_report_the_same(libraries):
    """All but what a set chooses for itself."""
    tables = [dict(constants.read_table(library.handle)) for library in libraries.values()]
    own = [(table.pop("PACKED"), table.pop("STRIP")) for table in tables]
    assert set(own) <= {(0, 4), (1, 4), (1, 16)}
    assert all(table == tables[0] for table in tables)
    known = {field.upper() for field in constants.Constants.__slots__} - {"PACKED", "STRIP"}
    assert set(tables[0]) == {*constants.MIRRORED, *constants.FORMATS, *known}
