"""The tape of a single row: what is cheaper to do twice than to wait for.

A kernel that goes row by row leaves all but one worker idle when there is one row, and then a
barrier must hand its result on. So every worker does all of it, into rows of its own, and reads
these until the row is written in common again. The cache is in common: what a step appends to it is
a function of its row alone, so that all write the same bytes, and each reads what it wrote itself
whether the others have come so far or not. What follows a projection element by element is cut
by columns as the projection was, and needs no barrier either. A row that nothing later reads is
left in the arena.
"""

import ctypes
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muser.devices.cpu.arena import Arena, quantised_name
from muser.devices.cpu.moves import CACHE, Move, waits
from muser.kernels import CACHE_LINE, Args, address, zeros

SOURCES, TARGETS = ("x", "y"), ("out", "normed", "codes", "scales", "sums")
TAKE_ROWS = "take_rows"  # of one row the first is the only one
WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Placed:
    """A move on one bucket's tape: `args` is one record, or one a worker."""

    move: Move
    args: ctypes.Array[Args]
    wait: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class _Way:
    """How a move is done: its cut, and which of its reads and writes are every worker's own. A read
    of a cache is its own where every worker has written all of that cache's new row.
    """

    cut: Hashable
    own_reads: frozenset[str]
    own_writes: frozenset[str]


def place_one_row(moves: Sequence[Move], arena: Arena, threads: int) -> list[Placed]:
    """The moves of a step of one row, with the copies that `threads` workers need."""
    kept = [move for move in moves if move.kernel != TAKE_ROWS]
    ways = _ways(kept)
    copies = _Copies(arena, frozenset().union(*(way.own_writes for way in ways)), threads)
    both = list(zip(kept, ways, strict=True))
    order = waits(
        (way.cut, move.reads - way.own_reads, move.writes - way.own_writes) for move, way in both
    )
    return [
        Placed(move, copies.args(move, way), wait, way.cut == WHOLE)
        for (move, way), wait in zip(both, order, strict=True)
    ]


def _ways(moves: Sequence[Move]) -> list[_Way]:
    """A move that can go by columns does, if a row it reads was last written so; one that goes row
    by row is done whole by everyone, unless it leaves a value behind, or appends to a cache again.
    """
    answer: list[_Way] = []
    written: dict[str, Hashable] = {}
    lasting = _lasting(moves)
    for i, move in enumerate(moves):
        cut = move.cut
        if move.columns is not None and any(written.get(x) == move.columns for x in move.reads):
            cut = move.columns
        elif move.by_row is not None and i not in lasting:
            cut = WHOLE
        own = frozenset(name for name in move.reads if written.get(name) == WHOLE)
        rows = move.writes - _caches(move)
        answer.append(_Way(cut, own, rows if cut == WHOLE else frozenset()))
        written |= dict.fromkeys(move.writes, cut)
    return answer


def _lasting(moves: Sequence[Move]) -> frozenset[int]:
    """Moves that write rows of which no later move reads one, or a cache that is written more than
    once: who is late would undo what another has appended since.
    """
    found, read = set(), set[str]()
    times = Counter(name for move in moves for name in move.writes)
    for i in reversed(range(len(moves))):
        move = moves[i]
        caches = _caches(move)
        rows = move.writes - caches
        if any(times[name] > 1 for name in caches) or (rows and rows.isdisjoint(read)):
            found.add(i)
        read |= move.reads
    return frozenset(found)


def _caches(move: Move) -> frozenset[str]:
    """Those that it writes."""
    return frozenset(name for name in move.writes if name.startswith(CACHE))


class _Copies:
    """Memory for every worker's own rows, and arguments that point there."""

    def __init__(self, arena: Arena, names: frozenset[str], threads: int) -> None:
        self._threads = threads
        self._places: dict[int, tuple[str, int]] = {}  # address in the arena to name and offset
        size = 0
        for name, array, count in _first_rows(arena, names):
            self._places[address(array)] = name, size
            size += -(-count * array.itemsize // CACHE_LINE) * CACHE_LINE
        self._stride = size
        memory = zeros(threads * size, np.uint8)
        arena.keep(memory)
        self._base = address(memory)

    def args(self, move: Move, way: _Way) -> ctypes.Array[Args]:
        offsets = self._offsets(move, way)
        records = (Args * (self._threads if offsets else 1))()
        for worker, record in enumerate(records):
            ctypes.pointer(record)[0] = move.args
            if way.cut == move.columns:
                record.striped = 1
            for name, offset in offsets.items():
                setattr(record, name, self._base + worker * self._stride + offset)
        return records

    def _offsets(self, move: Move, way: _Way) -> dict[str, int]:
        """Fields of the arguments that point to a worker's own rows."""
        found = {}
        for field in SOURCES + TARGETS:
            at = getattr(move.args, field)
            name, offset = self._places.get(at or 0, ("", 0))
            target = field in TARGETS and name in move.writes
            if name in (way.own_writes if target else way.own_reads):
                found[field] = offset
        return found


def _first_rows(
    arena: Arena, names: frozenset[str]
) -> list[tuple[str, NDArray[np.float32] | NDArray[np.int16], int]]:
    """Name, array, and how many of its elements one row takes."""
    found: list[tuple[str, NDArray[np.float32] | NDArray[np.int16], int]] = [
        (name, rows, rows.shape[1]) for name, rows in arena.rows.items() if name in names
    ]
    for block, scratch in arena.quantised.items():
        name = quantised_name(block)
        if name in names:
            for array in (scratch.codes, scratch.scales, scratch.sums):
                found.append((name, array, array.size // scratch.rows))
    return found
