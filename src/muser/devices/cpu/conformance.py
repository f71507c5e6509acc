"""Runs the vectors of `graph/conformance.py` through a library's real code, once per library.

A device whose words differ in one place is refused: there is no "nearly" in this arithmetic.
"""

import ctypes
import hashlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from muser.devices.cpu.runner import CpuRunner
from muser.devices.device import Limits, Step
from muser.errors import DeviceError
from muser.formats import BlockType
from muser.graph import Attention, CacheSpec, Graph, KvAppend, Op, RmsNorm, conformance
from muser.graph.arithmetic import KV_GRID, f32, grid_rows
from muser.kernels import Library, Shelf, address
from muser.weights import BoundTensor, GridTensor

Array = NDArray[np.generic]
PASSED = "passed"


def require_conformance(library: Library, shelf: Shelf) -> None:
    """Runs the vectors unless the shelf remembers that these very bytes passed them.

    Raises `DeviceError` naming the first check that differs.
    """
    name = f"conformance-{library.sha256[:32]}-{_data_digest()}"
    if shelf.note(name) == PASSED:
        return
    for check, wrong in run_checks(library):
        if wrong:
            raise DeviceError(
                f"The {library.isa} kernels fail the conformance vectors: {check} differs in"
                f" {wrong} places.",
                "This compiler or processor does not keep the arithmetic; set MUSER_CC to another"
                " compiler, or MUSER_ISA=c.",
            )
    shelf.remember(name, PASSED)


def run_checks(library: Library) -> Iterator[tuple[str, int]]:
    """Name of each check and how many words differ."""
    yield from _primitives(library)
    yield "kv_append", _append(library)
    for norm in conformance.NORMS:
        yield f"norm of {norm.count}", int(_norm(library, norm) != norm.digest)
    for vector in conformance.ATTENTION:
        name = f"attention {vector.digest} of heads of {vector.dim}"
        yield name, int(_attention(library, vector) != vector.digest)


def _data_digest() -> str:
    """Changes with the vectors, so that a remembered pass is about these."""
    data = [getattr(conformance, name) for name in sorted(vars(conformance)) if name.isupper()]
    return hashlib.sha256(repr(data).encode()).hexdigest()[:16]


def _call(library: Library, name: str, out: Array, *arrays: Array) -> Array:
    function = getattr(library.handle, f"muser_check_{name}")
    function.argtypes, function.restype = None, None
    count = ctypes.c_int64(len(out))
    function(count, *(ctypes.c_void_p(address(array)) for array in (*arrays, out)))
    return out


def _primitives(library: Library) -> Iterator[tuple[str, int]]:
    column, rne = conformance.column, conformance.RNE
    words = [np.array([row[0] for row in table]) for table in _INTEGERS.values()]
    fma = [column(conformance.FMA, i) for i in range(4)]
    yield "fma", _differs(library, "fma", fma[3], *fma[:3])
    x = np.array([f32(row[0]) for row in rne], np.float32)
    factor = np.full_like(x, f32(conformance.RNE_FACTOR))
    codes = np.array([row[1] for row in rne], np.int32)
    yield "rne", _differs(library, "rne", codes, factor, x)
    for (name, table), source in zip(_INTEGERS.items(), words, strict=True):
        expected = np.array([f32(row[1]) for row in table], np.float32)
        yield name, _differs(library, name, expected, source.astype(name))
    halves = conformance.F32_TO_F16
    wide = np.array([f32(row[0]) for row in halves], np.float32)
    narrow = np.array([row[1] for row in halves], np.uint16)
    yield "half", _differs(library, "half", narrow, wide)
    every = np.arange(1 << 16, dtype=np.uint16)
    every = every[every & 0x7C00 != 0x7C00]
    widened = every.view(np.float16).astype(np.float32)
    yield "from_half", _differs(library, "from_half", widened, every)
    divide = [column(conformance.DIVIDE, i) for i in range(3)]
    yield "divide", _differs(library, "divide", divide[2], *divide[:2])
    for name, words_of in _FUNCTIONS.items():
        yield name, _differs(library, name, column(words_of, 1), column(words_of, 0))


_INTEGERS: Mapping[str, tuple[tuple[int, str], ...]] = {
    "int32": conformance.INT32_TO_F32,
    "int64": conformance.INT64_TO_F32,
}

_FUNCTIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "inverse_root": conformance.INVERSE_ROOT,
    "exp": conformance.EXP,
    "exp2_fraction": conformance.EXP2_FRACTION,
}


def _differs(library: Library, name: str, expected: Array, *sources: Array) -> int:
    """Each vector alone and in a crowd of copies, so that vector code and its tail both meet it."""
    copies = 19
    crowd = [np.tile(source, copies) for source in sources]
    actual = _call(library, name, np.zeros(len(expected) * copies, expected.dtype), *crowd)
    return conformance.mismatches(np.tile(expected, copies), actual)


class _Vectors:
    """Weights of the little graphs below: f32 vectors by name."""

    def __init__(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        self._vectors = vectors

    def tensor(self, name: str) -> BoundTensor:
        vector = self._vectors[name]
        return BoundTensor(name, BlockType.F32, vector.shape, vector.view(np.uint8))

    def vector(self, name: str) -> NDArray[np.float32]:
        return self._vectors[name]

    def grid(self, name: str) -> GridTensor:
        raise KeyError(name)


def _play(
    library: Library,
    op: Op,
    rows: Mapping[str, NDArray[np.float32]],
    spec: CacheSpec | None = None,
    position: int = 0,
    weights: Mapping[str, NDArray[np.float32]] | None = None,
    prepare: Callable[[CpuRunner], None] = lambda runner: None,
) -> CpuRunner:
    """One operator over one row; the arena holds its result."""
    widths = {name: row.size for name, row in rows.items()}
    caches = () if spec is None else (spec,)
    graph = Graph("check", (op,), widths, {}, caches, {}, 1, position + 1)
    limits = Limits(context=position + 1, slots=1, chunk=1)
    runner = CpuRunner(library, 1, graph, _Vectors(weights or {}), limits)
    for name, row in rows.items():
        runner.rows[name][0] = row.reshape(-1)
    prepare(runner)
    one, where = np.zeros(1, np.int32), np.array([position], np.int32)
    runner.play(Step(one, where, one, one))
    runner.close()
    return runner


def _norm(library: Library, vector: conformance.NormVector) -> str:
    op = RmsNorm("x", "y", "w", conformance.NORM_EPS, "norm")
    rows = {"x": vector.row(), "y": np.zeros(vector.count, np.float32)}
    runner = _play(library, op, rows, weights={"w": vector.weight()})
    return conformance.digest(runner.rows["y"][0])


def _append(library: Library) -> int:
    row = np.array([f32(text) for text, _ in conformance.GRID], np.float32)
    codes = np.array([code for _, code in conformance.GRID], np.int16)
    spec = CacheSpec(kv_heads=1, head_dim=len(row), window=None)
    runner = _play(library, KvAppend("k", "v", 0, "kv"), {"k": row, "v": row}, spec)
    cache = runner.caches[0]
    steps = (cache.key.steps[0, 0, 0], cache.value.steps[0, 0, 0])
    wrong = sum(int(step != conformance.GRID_STEP) for step in steps)
    planes = (cache.key, cache.value)
    return wrong + sum(
        conformance.mismatches(codes, plane.codes[0, 0, 0, : len(row)]) for plane in planes
    )


def _attention(library: Library, vector: conformance.AttentionVector) -> str:
    """`last` − 1 is the query's position, and the window hides what lies before `first`."""
    window = vector.last - vector.first if vector.first else None
    spec = CacheSpec(kv_heads=1, head_dim=vector.dim, window=window)
    op = Attention("q", "out", 0, 4, vector.dim**-0.5, "attention")
    query = vector.query()

    def fill(runner: CpuRunner) -> None:
        capacity = runner.caches[0].geometry.capacity
        first = max(0, vector.last - capacity)
        keys, values = (
            grid_to_half(rows)[first : vector.last] for rows in (vector.keys(), vector.values())
        )
        runner.caches[0].import_rows(0, first, keys, values)

    rows = {"q": query, "out": np.zeros(query.size, np.float32)}
    runner = _play(library, op, rows, spec, vector.last - 1, prepare=fill)
    return conformance.digest(runner.rows["out"][0])


def grid_to_half(rows: NDArray[np.float32]) -> NDArray[np.float16]:
    """Rows `[n, d]` of the vectors, snapped as they are stored: f16 `[n, 1, d]`."""
    codes, steps = grid_rows(rows[:, None, :], *KV_GRID)
    return np.ldexp(codes.astype(np.float64), steps[..., None]).astype(np.float16)
