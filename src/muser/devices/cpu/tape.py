"""Tapes: entries in order, where barriers must stand, and the pool that plays them."""

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muser.devices.cpu.moves import CACHE, Move, barriers
from muser.devices.cpu.one_row import Placed
from muser.errors import ArithmeticFault, Cancelled, DeviceError, MuserError
from muser.kernels import Args, Entry, Library, Outcome, address, pipeline, zeros


@dataclass(frozen=True, slots=True)
class Tape:
    """The entries of one row bucket, as the native player reads them."""

    entries: ctypes.Array[Entry]
    labels: tuple[str, ...]
    nodes: tuple[str, ...]
    moves: tuple[Move, ...]
    keep: tuple[object, ...] = ()  # arguments that entries point to

    @classmethod
    def record(cls, placed: Sequence[Placed], library: Library, bucket: str) -> "Tape":
        """Specialises every move for `bucket`."""
        pipelines = [pipeline(one.move.kernel, bucket) for one in placed]
        entries = (Entry * len(placed))()
        for entry, one, chosen in zip(entries, placed, pipelines, strict=True):
            entry.run = library.address(chosen)
            entry.args = ctypes.addressof(one.args)
            entry.wait, entry.whole = int(one.wait), int(one.whole)
            entry.own = int(len(one.args) > 1)
        return cls(
            entries,
            tuple(chosen.label(library.isa) for chosen in pipelines),
            tuple(one.move.node for one in placed),
            tuple(one.move for one in placed),
            tuple(one.args for one in placed),
        )


def place(moves: Sequence[Move]) -> list[Placed]:
    """The moves of a step of several rows."""
    placed = []
    for move, wait in zip(moves, barriers(moves), strict=True):
        args = (Args * 1)()
        args[0] = move.args
        placed.append(Placed(move, args, wait, whole=False))
    return placed


@dataclass(frozen=True, slots=True)
class Stamps:
    """Nanoseconds of one clock: when the play began and ended, and `entries` int64
    `[threads, entries, 2]`, the begin and end of each entry on each worker.
    """

    begin: int
    end: int
    entries: NDArray[np.int64]


class Player:
    """A pool of `threads` native threads. `play` is one foreign call, with the GIL released.

    The pool's memory is an array here, so it outlives every caller of a method; `close` ends the
    threads, and so do the collection of a player and the end of the interpreter.
    """

    def __init__(self, library: Library, threads: int, scratch_bytes: int) -> None:
        self.threads = threads
        self._calls = _Calls(library.handle)
        self._scratch = zeros((threads, scratch_bytes), np.uint8)
        self._memory = zeros(library.constants.pool_bytes, np.uint8)
        self._pool = address(self._memory)
        error = self._calls.open(self._pool, threads, address(self._scratch), scratch_bytes)
        if error:
            raise DeviceError(
                f"The system refuses a pool of {threads} threads ({os.strerror(error)}).",
                "Ask for fewer with --threads.",
            )
        self._end = weakref.finalize(
            self, _end, self._calls.close, self._pool, self._memory, self._scratch
        )

    def play(self, tape: Tape) -> None:
        """Raises `Cancelled`, `ArithmeticFault` (naming the node), or `DeviceError`."""
        fault = ctypes.c_uint64()
        outcome = self._calls.play(self._pool, tape.entries, len(tape.entries), ctypes.byref(fault))
        if outcome != Outcome.PLAYED:
            raise _failure(Outcome(outcome), tape, fault.value)

    def play_timed(self, tape: Tape) -> "Stamps":
        """The same play with the clock read around every entry on every worker."""
        stamps = np.zeros((self.threads, len(tape.entries), 2), np.int64)
        around, fault = np.zeros(2, np.int64), ctypes.c_uint64()
        outcome = self._calls.play_timed(
            self._pool,
            tape.entries,
            len(tape.entries),
            address(stamps),
            address(around),
            ctypes.byref(fault),
        )
        if outcome != Outcome.PLAYED:
            raise _failure(Outcome(outcome), tape, fault.value)
        return Stamps(int(around[0]), int(around[1]), stamps)

    def cancel(self) -> None:
        """The running play, and every later one until `resume`, raises `Cancelled`."""
        self._calls.cancel(self._pool)

    def resume(self) -> None:
        """Forget an earlier `cancel`; called before work that a later cancel may stop."""
        self._calls.resume(self._pool)

    def close(self) -> None:
        """Cancels, waits until no one plays, and ends the threads; later plays are refused."""
        self._calls.close(self._pool)


class _Calls:
    """The pool's functions of a library, with their types."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        pool, count, size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self.open = ctypes.CFUNCTYPE(count, pool, count, ctypes.c_void_p, size)(
            ("muser_pool_open", handle)
        )
        self.play = ctypes.CFUNCTYPE(count, pool, ctypes.c_void_p, count, ctypes.c_void_p)(
            ("muser_pool_play", handle)
        )
        array = ctypes.c_void_p
        self.play_timed = ctypes.CFUNCTYPE(count, pool, array, count, array, array, array)(
            ("muser_pool_play_timed", handle)
        )
        plain = ctypes.CFUNCTYPE(None, pool)
        self.cancel = plain(("muser_pool_cancel", handle))
        self.resume = plain(("muser_pool_resume", handle))
        self.close = plain(("muser_pool_close", handle))


def _end(close: Callable[[int], None], pool: int, *memory: object) -> None:
    """`memory` is what native code may touch until `close` has returned."""
    close(pool)


def _failure(outcome: Outcome, tape: Tape, fault: int) -> MuserError:
    match outcome:
        case Outcome.CANCELLED:
            return Cancelled("The step was cancelled.", "Start it again if it is still wanted.")
        case Outcome.FAULTED:
            return _fault(tape, fault)
        case Outcome.FORKED:
            return DeviceError(
                f"Process {os.getpid()} was forked from the one that loaded this model.",
                "Load the model in the process that uses it.",
            )
        case Outcome.CLOSED:
            return DeviceError("This runner is closed.", "Load the model again.")
    return DeviceError(
        "This runner is already computing a step.", "Call it from one thread at a time."
    )


def _fault(tape: Tape, fault: int) -> ArithmeticFault:
    entry, row = fault >> 32, fault & 0xFFFFFFFF
    return ArithmeticFault(
        f"Row {row} of {tape.nodes[entry]} left the finite numbers ({tape.labels[entry]}).",
        "The weights or the prompt drive this model out of range; no answer is given.",
    )


def labels_by_type(tapes: Iterable[Tape]) -> Mapping[str, tuple[str, ...]]:
    """What a label served, to the labels, each in order of first use.

    Keys are tensor types, `KV` for what reads or writes caches, `rows` for what has rows alone.
    """
    found: dict[str, dict[str, None]] = {}
    for tape in tapes:
        for move, label in zip(tape.moves, tape.labels, strict=True):
            found.setdefault(_served(move), {})[label] = None
    return {kind: tuple(labels) for kind, labels in sorted(found.items())}


def _served(move: Move) -> str:
    touched = move.reads | move.writes
    cached = any(name.startswith(CACHE) for name in touched)
    return move.tensor_type or ("KV" if cached else "rows")
