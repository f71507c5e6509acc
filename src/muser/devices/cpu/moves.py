"""Moves: lowered operators, how workers share each, and where barriers must stand between them."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from muser.kernels import Args

CACHE = "cache "  # begins the name of a cache among what a move reads and writes


@dataclass(frozen=True, slots=True)
class Move:
    """One lowered operator, for every row bucket: a kernel name and its arguments.

    `reads` and `writes` name rows, scratch and caches. `by_row` is the name of the row count
    (`n` or `m`) if a worker writes only what it alone reads afterwards, row by row; None otherwise.
    `columns`: elements of a row that workers share in runs of sixteen, and of which each reads and
    writes its own alone (a projection reads whole rows, but none that is shared so); None if no
    such cut is possible. A move with both is cut by rows where there are many.
    `tensor_type` is the type of the weights that it reads, for the labels; `tensors` are the names
    of those that it reads whole.
    """

    kernel: str
    args: Args
    node: str
    reads: frozenset[str]
    writes: frozenset[str]
    by_row: str | None
    columns: int | None = None
    tensor_type: str | None = None
    tensors: tuple[str, ...] = ()

    @property
    def cut(self) -> Hashable:
        """Entries of one cut never need a barrier between them; None: it meets everything."""
        return self.by_row if self.by_row is not None else self.columns


@dataclass(slots=True)
class _Touched:
    """What the entries of one cut have read and written since the last barrier."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def meets(self, reads: frozenset[str], writes: frozenset[str]) -> bool:
        return not (
            self.writes.isdisjoint(reads)
            and self.reads.isdisjoint(writes)
            and self.writes.isdisjoint(writes)
        )

    def add(self, reads: frozenset[str], writes: frozenset[str]) -> None:
        self.reads |= reads
        self.writes |= writes


Sharing = tuple[Hashable, frozenset[str], frozenset[str]]
"""A cut, and what is read and written by more than one worker."""


def waits(sharing: Iterable[Sharing]) -> list[bool]:
    """Which entries must wait for all earlier ones.

    An entry waits if it conflicts (read after write, write after read, write after write) with one
    since the last barrier, unless both are cut alike: then each worker meets only its own.
    """
    answer: list[bool] = []
    since: dict[Hashable, _Touched] = {}
    for cut, reads, writes in sharing:
        alike = {cut} - {None}
        wait = any(seen.meets(reads, writes) for kind, seen in since.items() if kind not in alike)
        if wait:
            since = {}
        since.setdefault(cut, _Touched()).add(reads, writes)
        answer.append(wait)
    return answer


def barriers(moves: Iterable[Move]) -> list[bool]:
    """`waits` of moves that are cut as they stand."""
    return waits((move.cut, move.reads, move.writes) for move in moves)
