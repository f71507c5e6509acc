"""Runs last: no kernel of a listed text may pass by not being run."""

import pytest

from .listed import LISTED
from .shim import RAN


@pytest.mark.parametrize(("architecture", "text", "before"), LISTED, ids=lambda x: str(x))
def test_every_kernel_of_the_text_ran(request, shims, architecture, text, before):
    config = request.config
    chosen = any("::" in name or name.endswith(".py") for name in config.args)
    if chosen or config.option.keyword or config.option.lf:
        pytest.skip("only a part of the tests was asked for")
    kernels = {(architecture, name) for name in shims(architecture, *before, text).kernels}
    others = {(architecture, name) for name in shims(architecture, *before).kernels}
    assert kernels - others
    assert not kernels - others - RAN
