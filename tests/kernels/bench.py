"""One operator, or a few, on a library's real kernels: what the equality tests call."""

from dataclasses import dataclass, field

import numpy as np

from muser.devices import CpuRunner, Limits, Step
from muser.formats import BlockType, dequantise
from muser.graph import Graph, oracle
from muser.graph.arithmetic import z
from muser.weights import BoundTensor, GridTensor

HALF_SCALES = {
    BlockType.Q8_0: (0,),
    BlockType.Q4_0: (0,),
    BlockType.Q4_1: (0, 2),
    BlockType.Q5_0: (0,),
    BlockType.Q5_1: (0, 2),
    BlockType.Q4_K: (0, 2),
    BlockType.Q5_K: (0, 2),
    BlockType.Q6_K: (208,),
}
FLOATS = (BlockType.F32, BlockType.F16, BlockType.BF16)
TYPES = (*HALF_SCALES, *FLOATS)


@dataclass
class Tensors:
    """Stands in for `Weights`: tensors by name, without a file."""

    tensors: dict[str, BoundTensor] = field(default_factory=dict)
    origin = None
    memory = None

    def put(self, name, kind, raw, width):
        rows = raw.reshape(-1, kind.row_bytes(width))
        shape = (width, len(rows))
        self.tensors[name] = BoundTensor(name, kind, shape, np.ascontiguousarray(raw).reshape(-1))

    def put_vector(self, name, vector):
        raw = np.ascontiguousarray(vector, np.float32).view(np.uint8)
        self.tensors[name] = BoundTensor(name, BlockType.F32, vector.shape, raw)

    def tensor(self, name):
        return self.tensors[name]

    def vector(self, name):
        return z(self.tensors[name].raw.view(np.float32))

    def grid(self, name):
        tensor = self.tensors[name]
        width, rows = tensor.shape
        codes, steps = oracle.weight_grid(tensor.type, tensor.raw.reshape(rows, -1))
        flat = codes.reshape(rows, -1)[:, :width].astype(np.int16)
        return GridTensor(np.ascontiguousarray(flat), steps.astype(np.int8))


def random_blocks(rng, kind, rows, width):
    """Raw weight rows whose codes and small scales take every value; f16 scales are ordinary."""
    if kind in FLOATS:
        values = rng.standard_normal((rows, width)) * 2.0 ** rng.integers(-12, 6, (rows, 1))
        return float_rows(kind, values.astype(np.float32))
    blocks = rng.integers(0, 256, (rows, width // kind.elements, kind.bytes), dtype=np.uint8)
    blocks[0, 0] = 255  # the largest codes, and for Q8_0 all -1
    blocks[0, -1] = 128  # -128 as int8 codes and scales
    for at in HALF_SCALES[kind]:
        scale = rng.standard_normal(blocks.shape[:2]) * 2.0 ** rng.integers(
            -14, 3, blocks.shape[:2]
        )
        blocks[:, :, at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def float_rows(kind, values):
    if kind is BlockType.F32:
        return values.view(np.uint8)
    if kind is BlockType.F16:
        return values.astype(np.float16).view(np.uint8)
    return np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)


def random_rows(rng, rows, width):
    """Activations of many sizes: ordinary, all zero, tiny, large, one spike, exact ties."""
    x = rng.standard_normal((rows, width)).astype(np.float32)
    if rows > 8:
        x[1] = 0
        x[2] *= np.float32(2.0**-38)
        x[3] *= np.float32(2.0**20)
        x[4] = 0
        x[4, width // 2] = -3
        x[5] = rng.integers(-254, 255, width) / np.float32(2)
        x[6, : width // 2] = 0
    return z(x)


def step_of(count, positions=None, slots=None, outputs=None, tokens=None):
    def ints(values, default):
        return np.asarray(default if values is None else values, np.int32)

    return Step(
        tokens=ints(tokens, np.zeros(count)),
        positions=ints(positions, np.arange(count)),
        slots=ints(slots, np.zeros(count)),
        outputs=ints(outputs, np.arange(count)),
    )


class Bench:
    """A runner of a hand-made graph; rows are written before and read after each play."""

    def __init__(self, library, threads, ops, rows, tensors=None, **more):
        self.library, self.threads = library, threads
        limits = more.pop("limits", None) or Limits(context=64, slots=1, chunk=64)
        graph = Graph(
            architecture="bench",
            ops=tuple(ops),
            rows=rows,
            weights={},
            caches=more.pop("caches", ()),
            ropes=more.pop("ropes", {}),
            vocabulary=more.pop("vocabulary", 1 << 20),
            context=limits.context,
        )
        self.runner = CpuRunner(library, threads, graph, tensors or Tensors(), limits)

    def play(self, inputs, target, step=None):
        """`inputs`: row name to f32 `[n, width]`; the target's rows after one play."""
        count = len(next(iter(inputs.values()))) if step is None else len(step.tokens)
        step = step or step_of(count)
        for name, values in inputs.items():
            self.runner.rows[name][: len(values)] = values
        self.runner.play(step)
        return self.runner.rows[target][:count].copy()

    def label(self, kernel, bucket):
        """The label of the last entry that begins with `kernel` on the tape of a row bucket."""
        return [x for x in self.runner.tapes[bucket].labels if x.startswith(kernel)][-1]

    def close(self):
        self.runner.close()


def embed_oracle(kind, raw):
    return oracle.store(dequantise(kind, raw), "embedding")


def same_bits(expected, actual):
    """Shapes and every bit."""
    expected, actual = np.ascontiguousarray(expected), np.ascontiguousarray(actual)
    return expected.shape == actual.shape and expected.tobytes() == actual.tobytes()


def differing(expected, actual):
    """A short account for a failed comparison."""
    wrong = np.argwhere(expected.view(np.uint32) != actual.view(np.uint32))
    at = tuple(int(i) for i in wrong[0])
    return f"{len(wrong)} of {expected.size} differ, first at {at}: {expected[at]} {actual[at]}"
