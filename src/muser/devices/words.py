"""Section 1 of the arithmetic as arrays: what goes into a primitive, what must come out."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muser.graph import conformance
from muser.graph.arithmetic import f32

Array = NDArray[np.generic]
COPIES = 19


@dataclass(frozen=True, slots=True)
class Words:
    """`sources` and `expected`: arrays `[count]`, each vector in a crowd of copies, so that vector
    code and its tail both meet it.
    """

    name: str
    sources: tuple[Array, ...]
    expected: Array

    def wrong(self, actual: Array) -> int:
        """How many bytes differ."""
        return conformance.mismatches(self.expected, actual)


def primitive_words() -> Iterator[Words]:
    """fma, rne, conversions, quotients, roots and exponentials."""
    column, rne = conformance.column, conformance.RNE
    yield _crowd("fma", column(conformance.FMA, 3), *_columns(conformance.FMA, 3))
    x = np.array([f32(row[0]) for row in rne], np.float32)
    factor = np.full_like(x, f32(conformance.RNE_FACTOR))
    yield _crowd("rne", np.array([row[1] for row in rne], np.int32), factor, x)
    for name, table in (
        ("int32", conformance.INT32_TO_F32),
        ("int64", conformance.INT64_TO_F32),
    ):
        expected = np.array([f32(row[1]) for row in table], np.float32)
        yield _crowd(name, expected, np.array([row[0] for row in table]).astype(name))
    halves = conformance.F32_TO_F16
    wide = np.array([f32(row[0]) for row in halves], np.float32)
    yield _crowd("half", np.array([row[1] for row in halves], np.uint16), wide)
    every = np.arange(1 << 16, dtype=np.uint16)
    every = every[every & 0x7C00 != 0x7C00]
    yield _crowd("from_half", every.view(np.float16).astype(np.float32), every)
    yield _crowd("divide", column(conformance.DIVIDE, 2), *_columns(conformance.DIVIDE, 2))
    for name, words in (
        ("inverse_root", conformance.INVERSE_ROOT),
        ("exp", conformance.EXP),
        ("exp2_fraction", conformance.EXP2_FRACTION),
    ):
        yield _crowd(name, column(words, 1), column(words, 0))


def _columns(table: tuple[tuple[str, ...], ...], count: int) -> list[Array]:
    return [conformance.column(table, i) for i in range(count)]


def _crowd(name: str, expected: Array, *sources: Array) -> Words:
    return Words(name, tuple(np.tile(one, COPIES) for one in sources), np.tile(expected, COPIES))
