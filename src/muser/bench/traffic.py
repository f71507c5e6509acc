"""What an entry or a launch has to have from memory, and how much it multiplies."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from muser.devices import Step
from muser.devices.cpu.moves import CACHE, Move
from muser.devices.cpu.planes import Cache, Plane
from muser.devices.cuda.layouts import PAD, Layout
from muser.devices.cuda.tape import Launch
from muser.formats import FLOATS
from muser.graph import CacheSpec, Project
from muser.kernels import StepBlock
from muser.kv import round_up
from muser.weights import BoundTensor, Weights

GRID_BYTES = 2  # a float weight's code
F16_BYTES = 2


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
    return sum(
        _seen(caches[layer].spec.window, step) * _row_bytes(caches[layer]) for layer in layers
    )


def launch_bytes(weights: Weights, specs: Sequence[CacheSpec], launch: Launch, step: Step) -> int:
    """On a card: whole weights as they are laid out there, without what fills them up, and the K
    and V rows that the step's queries see, each once.
    """
    laid = (_laid_bytes(weights.tensor(name)) for name in launch.tensors)
    seen = (_seen(specs[layer].window, step) * _f16_bytes(specs[layer]) for layer in launch.caches)
    return sum(laid) + sum(seen)


def token_bytes(weights: Weights) -> int:
    """What one token reads on a card: the weights of all projections, each once."""
    ops = (op for op in weights.graph.ops if isinstance(op, Project))
    names = dict.fromkeys(name for op in ops for name in op.weights)
    return sum(_laid_bytes(weights.tensor(name)) for name in names)


def launch_products(weights: Weights, launch: Launch, rows: int) -> int:
    """Multiplications and additions of a projection of `rows` rows on a card."""
    return sum(2 * rows * _elements(weights, name) for name in launch.tensors)


def _laid_bytes(tensor: BoundTensor) -> int:
    layout = Layout.of(tensor.type, tensor.shape[0], tensor.rows)
    return layout.bytes * tensor.rows // round_up(tensor.rows, PAD)


def _f16_bytes(spec: CacheSpec) -> int:
    """Of one position in all heads of a card's cache: K and V as f16, and V's step."""
    return spec.kv_heads * (2 * F16_BYTES * spec.head_dim + 1)


def _seen(window: int | None, step: Step) -> int:
    """Distinct rows, all slots together."""
    seen = 0
    for slot in np.unique(step.slots):
        positions = step.positions[step.slots == slot]
        reach = window or int(positions.max()) + 1
        seen += int(positions.max()) + 1 - max(0, int(positions.min()) + 1 - reach)
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
