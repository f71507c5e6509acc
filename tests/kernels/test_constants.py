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
    own = ("PACKED", "STRIP", "KEY_GROUP", "KEY_UNIT", "VALUE_GROUP")
    size = ("ATTEND_BYTES", "ATTEND_CODE_BYTES")
    chosen = [tuple(table.pop(name) for name in own) for table in tables]
    for table in tables:
        assert all(table.pop(name) >= 0 for name in size)
    assert {packed[:2] for packed in chosen} <= {(0, 4), (1, 4), (1, 16)}
    assert {laid[2:] for laid in chosen} <= {(1, 1, 1), (16, 2, 2)}
    assert all(table == tables[0] for table in tables)
    known = {field.upper() for field in constants.Constants.__slots__}.difference(own, size)
    assert set(tables[0]) == {*constants.MIRRORED, *constants.FORMATS, *known}
