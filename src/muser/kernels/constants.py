"""Constants of the C texts, as a loaded library reports them.

`Constants` are known to the texts alone and taken from the library. `MIRRORED` ones stand in Python
too, because they are needed without a library; loading compares them.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from types import MappingProxyType

from muser.errors import DeviceError
from muser.graph.arithmetic import GRID_BLOCK, TILE
from muser.kernels.arguments import Args, Entry, StepBlock

MAX_THREADS = 256


class Outcome(IntEnum):
    """What `muser_pool_play` answers."""

    PLAYED = 0
    CANCELLED = 1
    FAULTED = 2
    FORKED = 3
    BUSY = 4
    CLOSED = 5


MIRRORED: Mapping[str, int] = MappingProxyType(
    {
        "STEP_BYTES": ctypes.sizeof(StepBlock),
        "ARGS_BYTES": ctypes.sizeof(Args),
        "ENTRY_BYTES": ctypes.sizeof(Entry),
        "TILE": TILE,
        "GRID_BLOCK": GRID_BLOCK,
        "MAX_THREADS": MAX_THREADS,
        **{outcome.name: outcome.value for outcome in Outcome},
    }
)


FORMATS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "GRID")
"""Block types, and float weights on their grid, whose numbers in the texts a library reports."""


@dataclass(frozen=True, slots=True)
class Constants:
    """`packed`: 1 if weights are read in panels of `lanes` outputs (`cpu/pack.h`), 0 if they are
    read where they lie. `pool_bytes`: of the tape player's own state. `row_tile`: scratch for
    quantised rows holds a multiple of so many. `code_group`: elements whose codes are summed, in at
    most `sum_words` int16. `strip`: weight rows that a worker unpacks at once, with
    `strip_head_bytes` beside the codes of a block. `plane_lanes`: a stored K or V row takes a
    multiple of so many codes; `key_group` positions of K lie side by side, `key_unit` elements of
    each together, V likewise (`cpu/kv.h`). `attend_bytes`: scratch that attention takes of a
    worker, with `attend_code_bytes` for each code of a stored row. Attention heads: `min_head` to
    `max_head`.
    """

    packed: int
    lanes: int
    pool_bytes: int
    row_tile: int
    code_group: int
    sum_words: int
    strip: int
    strip_head_bytes: int
    plane_lanes: int
    key_group: int
    key_unit: int
    value_group: int
    value_unit: int
    attend_bytes: int
    attend_code_bytes: int
    min_head: int
    max_head: int


class _Line(ctypes.Structure):
    """`struct constant` of `cpu/library.c`; an empty name ends the table."""

    _fields_ = (("name", ctypes.c_char * 28), ("value", ctypes.c_int32))


def read_table(handle: ctypes.CDLL) -> Mapping[str, int]:
    """Every line of the library's `muser_constants`."""
    table, at = {}, ctypes.addressof(_Line.in_dll(handle, "muser_constants"))
    while (line := _Line.from_address(at)).name:
        table[line.name.decode()] = int(line.value)
        at += ctypes.sizeof(_Line)
    return table


def read_constants(table: Mapping[str, int], isa: str) -> Constants:
    """Raises `DeviceError` where the library and this package say different things."""
    for name, value in MIRRORED.items():
        if table.get(name) != value:
            raise DeviceError(
                f"The {isa} kernels say {name} is {table.get(name)}, the package says {value}.",
                "This is a defect of the package; please report it.",
            )
    return Constants(**{field.name: table[field.name.upper()] for field in fields(Constants)})
