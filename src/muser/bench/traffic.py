"""What an entry has to have from memory, and how much it multiplies."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from muser.devices import Step
from muser.devices.cpu.moves import CACHE, Move
from muser.devices.cpu.planes import Cache, Plane
from muser.formats import FLOATS
from muser.kernels import StepBlock
from muser.weights import Weights

GRID_BYTES = 2  # a float weight's code


def weight_bytes(weights: Weights, names: Sequence[str]) -> int:
    """Of tensors that are read whole: as they lie in the file, float weights as their codes."""
    return sum(_bytes(weights, name) for name in names)


def products(weights: Weights, move: Move, step: Step) -> int:
    """Multiplications and additions of a projection, of all rows or of the wanted ones."""
    wanted = move.args.rows - move.args.step == StepBlock.m.offset
    rows = len(step.outputs if wanted else step.tokens)
    return sum(2 * rows * _elements(weights, name) for name in move.tensors)


def cache_bytes(caches: Sequence[Cache], move: Move, step: Step) -> int:
    """The K and V rows that the step's queries see, each once."""
    layers = [int(name.removeprefix(CACHE)) for name in move.reads if name.startswith(CACHE)]
    return sum(_seen(caches[layer], step) * _row_bytes(caches[layer]) for layer in layers)


def _seen(cache: Cache, step: Step) -> int:
    """Distinct rows, all slots together."""
    seen = 0
    for slot in np.unique(step.slots):
        positions = step.positions[step.slots == slot]
        window = cache.spec.window or int(positions.max()) + 1
        seen += int(positions.max()) + 1 - max(0, int(positions.min()) + 1 - window)
    return seen


def _row_bytes(cache: Cache) -> int:
    """Of one position in all heads, keys and values."""
    slots, _, capacity = map(int, cache.key.steps.shape)
    return (_size(cache.key) + _size(cache.value)) // (slots * capacity)


def _size(plane: Plane) -> int:
    return sum(int(getattr(plane, field.name).nbytes) for field in fields(plane))


def _elements(weights: Weights, name: str) -> int:
    tensor = weights.tensor(name)
    return tensor.shape[0] * tensor.rows


def _bytes(weights: Weights, name: str) -> int:
    tensor = weights.tensor(name)
    return GRID_BYTES * _elements(weights, name) if tensor.type in FLOATS else int(tensor.raw.size)
