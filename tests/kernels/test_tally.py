"""Runs last: no format, kernel, set or thread count may pass by not being tried."""

import pytest

from muser.kernels import REGISTRY

from .bench import TYPES
from .conftest import THREADS

WITHIN_OTHERS = {"quantise_32", "quantise_256", "grid_rows", "kv_append"}
"""Their results are what projections and attention multiply; they are compared through those."""


@pytest.fixture(autouse=True)
def whole_run(request):
    config = request.config
    chosen = any("::" in name or name.endswith(".py") for name in config.args)
    if chosen or config.option.keyword or config.option.lf:
        pytest.skip("only a part of the comparisons was asked for")


@pytest.mark.parametrize("count", THREADS)
def test_everything_was_compared_under_every_set(tally, libraries, count):
    for isa in libraries:
        formats, labels = tally.seen(isa, count)
        assert {kind.name for kind in TYPES} <= formats
        pipelines = {entry for entry in REGISTRY.values() if entry.name not in WITHIN_OTHERS}
        assert {entry.label(isa) for entry in pipelines} == labels


def test_instruction_sets_are_different_libraries(libraries):
    hashes = [library.sha256 for library in libraries.values()]
    assert len(set(hashes)) == len(hashes)
