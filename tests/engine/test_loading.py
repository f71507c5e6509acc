"""What is refused before anything large is made."""

import os

import pytest

from muser.devices import Limits
from muser.devices.host_memory import needed_bytes
from muser.engine.loading import load
from muser.errors import LimitError
from muser.formats import GgufFile
from muser.models import build
from muser.models.synth import synthesise


def test_bytes_beside_the_weights(tmp_path):
    synthesise(tmp_path / "m.gguf", architecture="muse-glimmer")
    with GgufFile.open(tmp_path / "m.gguf") as file:
        graph = build(file.metadata, file.tensors)
    kv = 2 * 2 * graph.caches[0].kv_heads * graph.caches[0].head_dim
    short, long = (needed_bytes(graph, Limits(n, 1, 16)) for n in (128, 1024))
    growing = sum(spec.window is None for spec in graph.caches)
    assert growing == 1
    table = 4 * graph.ropes["window"].rotated
    assert long - short == (1024 - 128) * (growing * kv + table)


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="this system does not tell its memory")
def test_a_context_larger_than_memory_is_refused(tmp_path, monkeypatch):
    synthesise(tmp_path / "m.gguf", context=1 << 22)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 16}.get)
    with pytest.raises(LimitError, match="A context of 4194304 tokens takes"):
        load(tmp_path / "m.gguf", context=1 << 22)
