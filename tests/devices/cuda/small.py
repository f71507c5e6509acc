"""A model that a step of the fake card takes no time for."""

import numpy as np

from muser.devices.feeding import stretch
from muser.formats import GgufFile
from muser.graph.interpreter import Interpreter
from muser.models import build
from muser.models.synth import synthesise
from muser.weights import Weights

LENGTH = 24


def small_model(path):
    """Written to `path`; see `with_oracle`."""
    synthesise(path, architecture="llama", weights="q8_0", seed=11)
    return with_oracle(path, LENGTH)


def with_oracle(path, length):
    """Of a file: graph, weights, ids `[length]` and the oracle's logits of them."""
    file = GgufFile.open(path)
    graph = build(file.metadata, file.tensors)
    ids = np.random.default_rng(2).integers(0, graph.vocabulary, length, dtype=np.int32)
    every = range(length)
    expected = Interpreter(graph, file, length).forward(ids, every, [0] * length, every)
    return graph, Weights(file, graph), ids, expected


def step(ids, first, last, outputs=None):
    wanted = range(last - first) if outputs is None else outputs
    return stretch(ids[first:last], first, 0, wanted)
