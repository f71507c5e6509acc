"""A cursor over hostile bytes: nothing is read, or allocated, before it is known to be there."""

import struct
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muser.errors import FormatError

DAMAGED = "The file is truncated or damaged: fetch it again."

WINDOW = 1 << 20  # bytes looked at together

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class MoreNeeded(Exception):
    """The file goes on behind the bytes that the cursor has."""


class Cursor:
    """Reads forward through `view`; every method raises FormatError instead of passing its end.

    `view` may hold only the first bytes of a file of `size`: what lies behind them raises
    `MoreNeeded`.
    """

    __slots__ = ("at", "end", "path", "view")

    def __init__(self, view: memoryview, path: Path, size: int) -> None:
        self.view = view
        self.path = path
        self.at = 0
        self.end = size

    def fail(self, sentence: str, remedy: str = DAMAGED) -> FormatError:
        """The error that names this file; the caller raises it."""
        return FormatError(f"{self.path}: {sentence}", remedy)

    def need(self, size: int, what: str) -> None:
        """Check that `size` more bytes exist, and are here."""
        if size > self.end - self.at:
            raise self.fail(
                f"{what} needs {size} bytes at offset {self.at}, {self.end - self.at} are left."
            )
        if size > len(self.view) - self.at:
            raise MoreNeeded

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self.view, self.at)
        self.at += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self.view, self.at)
        self.at += 8
        return int(value)

    def u64s(self, count: int, what: str) -> tuple[int, ...]:
        self.need(8 * count, what)
        values = struct.unpack_from(f"<{count}Q", self.view, self.at)
        self.at += 8 * count
        return values

    def count(self, most: int, item_bytes: int, what: str) -> int:
        """A u64 count of items of at least `item_bytes` each, at most `most`."""
        value = self.u64(f"the count of {what}")
        if value > most:
            raise self.fail(f"{value} {what} are more than the {most} allowed.")
        self.need(value * item_bytes, f"{value} {what}")
        return value

    def text(self, longest: int, what: str) -> bytes:
        """`u64 length, bytes`, of at most `longest` bytes."""
        size = self.u64(f"the length of {what}")
        if size > longest:
            raise self.fail(f"{what} is {size} bytes long, more than the {longest} allowed.")
        self.need(size, what)
        self.at += size
        return bytes(self.view[self.at - size : self.at])

    def numbers(self, dtype: np.dtype[np.generic], count: int, what: str) -> NDArray[np.generic]:
        """`count` numbers as a read-only array of their own (a copy: the file is unaligned)."""
        size = dtype.itemsize * count
        self.need(size, what)
        values = np.frombuffer(self.view, np.uint8, size, self.at).copy().view(dtype)
        values.flags.writeable = False
        self.at += size
        return values

    def string_starts(self, count: int, what: str) -> "array[int]":
        """Step over `count` strings, reading their lengths alone; the offset of each length."""
        self.need(8 * count, what)
        starts = array("Q")
        at = self.at + _short_strings(self.view, self.at, count, starts)
        note, unpack, view = starts.append, _U64.unpack_from, self.view
        last = len(view) - 8
        for _ in range(count - len(starts)):
            if at > last:
                break
            note(at)
            at += 8 + unpack(view, at)[0]
        if at > self.end or (len(starts) < count and len(view) == self.end):
            raise self.fail(f"{what} passes the end of the file after {len(starts)} strings.")
        if len(starts) < count or at > len(view):
            raise MoreNeeded
        self.at = at
        return starts


def _short_strings(view: memoryview, at: int, count: int, starts: "array[int]") -> int:
    """Notes the leading strings of 1 to 255 bytes without a zero byte; how many bytes they take.

    Seven zero bytes then stand right behind the first byte of each length and nowhere else. What is
    found so is believed where one string begins where the one before it ends.
    """
    begin = at
    while len(starts) < count:
        window = np.frombuffer(view[at : at + WINDOW], np.uint8)
        if len(window) < 8:
            break
        zero = window == 0
        pairs = zero[1:-1] & zero[2:]
        fours = pairs[:-2] & pairs[2:]
        found = np.flatnonzero(fours[:-3] & fours[3:])[: count - len(starts)]
        after = found + 8 + window[found]
        chained = np.concatenate(([0], after[:-1])) == found
        good = int(np.argmin(chained)) if not np.all(chained) else len(found)
        if good == 0 or after[good - 1] > len(window):
            good -= 1
        if good <= 0:
            break
        starts.frombytes((found[:good] + at).astype(np.uint64).tobytes())
        at += int(after[good - 1])
    return at - begin
