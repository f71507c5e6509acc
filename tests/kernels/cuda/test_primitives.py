"""The table of the arithmetic's first section through the functions that all texts are made of."""

import numpy as np
import pytest

from muser.devices.cuda.primitives import THREADS, UNUSED, Arguments
from muser.devices.words import primitive_words
from muser.kernels.cuda_registry import CHECKS

from .shim import address, device, poisoned

WORDS = {words.name: words for words in primitive_words() if words.name not in UNUSED}


def test_every_primitive_has_words():
    assert {f"check_{name}" for name in WORDS} == {*CHECKS}


@pytest.mark.parametrize("name", WORDS)
def test_words(shims, name, seed):
    words = WORDS[name]
    count = len(words.expected)
    sources = [device(source) for source in words.sources]
    out = poisoned(words.expected.shape, words.expected.dtype)
    argument = Arguments(out=address(out), count=count)
    for i, source in enumerate(sources):
        argument.sources[i] = address(source)
    shim = shims("sm_90a", "primitives.cuh")
    shim.launch(f"check_{name}", -(-count // THREADS), THREADS, argument, seed=seed)
    assert words.wrong(out) == 0
    other = out.copy()
    other.view(np.uint8)[-1] ^= 1
    assert words.wrong(other) == 1
