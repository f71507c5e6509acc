"""Where a position's K and V rows stand, as integers: nothing here allocates.

Tiles of attention are `[128t, 128t+128)` in absolute positions. Every capacity is a multiple of
128, so that a tile never wraps and a ring's rotation shows in no result.
"""

from dataclasses import dataclass

from muser.graph.arithmetic import TILE


def round_up(count: int, step: int) -> int:
    return -(-count // step) * step


@dataclass(frozen=True, slots=True)
class Geometry:
    """One layer's cache: growing if `window` is None, else a ring.

    `context` is the number of positions a slot may reach, `chunk` the most rows one step appends.
    A ring holds window + chunk rows: a whole chunk is stored before its first row reads back.
    """

    window: int | None
    context: int
    chunk: int

    @property
    def capacity(self) -> int:
        """Rows a slot holds, a multiple of 128."""
        growing = round_up(self.context, TILE)
        if self.window is None:
            return growing
        return min(growing, round_up(self.window + self.chunk, TILE))

    def index(self, position: int) -> int:
        """The row at which `position` is stored."""
        return position % self.capacity

    def visible(self, position: int) -> tuple[int, int]:
        """First and one past the last position that a query at `position` may read."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return first, position + 1

    def rewindable(self, length: int) -> int:
        """The shortest length that a sequence of `length` positions can be cut back to.

        A growing cache can forget everything. A ring can give back only rows whose window has not
        been overwritten since.
        """
        if self.window is None or length <= self.capacity:
            return 0
        return length - (self.capacity - self.window)
