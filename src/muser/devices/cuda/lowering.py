"""What the rules share: one row bucket's launches, and where rows, weights and scratch lie."""

import ctypes
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from muser.devices.cuda.arena import F32, Arena
from muser.devices.cuda.card import Address, Card, Shape
from muser.devices.cuda.memory import Memory, Room
from muser.devices.cuda.pinned import Pinned
from muser.devices.cuda.pipelines import Pipelines
from muser.devices.cuda.placing import DeviceWeights
from muser.devices.cuda.stepping import Faults, StepBlock, StepPointers
from muser.devices.cuda.tape import Launch
from muser.devices.device import Limits
from muser.graph import Add, Graph, Op, reads_of, writes_of


@dataclass
class Shared:
    """What all buckets of a runner share."""

    card: Card
    pinned: Pinned
    memory: Memory
    pipelines: Pipelines
    graph: Graph
    limits: Limits
    weights: DeviceWeights
    arena: Arena
    tables: Mapping[str, Address]  # rope table to f32 [context, rotated]
    scratch: Mapping[str, Room]
    aside: dict[str, Address] = field(default_factory=dict)  # of measurements

    def rooms(self, sizes: Mapping[str, int]) -> tuple[Address, ...]:
        """Where one launch may write so many bytes, and a later one of the same step read them.

        They are here since the loading: `scratch_of` has counted the largest of each name.
        """
        for name, size in sizes.items():
            assert size <= self.scratch[name].size, name
        return tuple(self.scratch[name].address for name in sizes)


class Lowering:
    """One part of a graph for steps of at most `rows` rows: its launches in order.

    `is_tail`: the part whose rows are the wanted ones. `reach`: the position below which all rows
    of a step stand.
    """

    def __init__(
        self,
        shared: Shared,
        step: StepBlock,
        bucket: str,
        rows: int,
        *,
        is_tail: bool,
        reach: int,
    ) -> None:
        self.shared, self.step, self.bucket, self.rows = shared, step, bucket, rows
        self.is_tail, self.reach = is_tail, reach
        self.launches: list[Launch] = []
        self.entries: list[tuple[str, int]] = []
        self.behind: tuple[Op, ...] = ()
        self.places = dict(shared.arena.rows)

    @property
    def processors(self) -> int:
        return self.shared.card.facts.processors

    def row(self, name: str) -> Address:
        return self.places[name]

    def width(self, name: str) -> int:
        return self.shared.graph.rows[name]

    def pointers(self) -> StepPointers:
        return self.step.pointers("m" if self.is_tail else "n")

    @property
    def count_at(self) -> Address:
        """Where the number of rows stands."""
        return int(self.pointers().count)

    def bytes_of(self, kernel: str) -> int:
        """The dynamic shared memory of a kernel that always takes the same."""
        return self.shared.pipelines.size(kernel, f"{kernel}_bytes")

    def norm_weight(self, name: str | None) -> Address:
        return 0 if name is None else self.shared.weights.vector(name)

    def entry_of(self, *nodes: str) -> int:
        """The number by which the next launch reports faults of these operators."""
        self.entries.append((" ".join(nodes), len(self.launches)))
        return len(self.entries) - 1

    def faults(self, *nodes: str) -> Faults:
        return Faults(self.step.back, self.entry_of(*nodes))

    def swap(self, name: str) -> Address:
        """Rows called `name` stand elsewhere from here on: what reads the old place goes on."""
        home = self.shared.arena.rows[name]
        (spare,) = self.shared.rooms(spare_room(name, self.width(name), self.rows))
        self.places[name] = spare if self.places[name] == home else home
        return self.places[name]

    def may_swap(self, name: str) -> bool:
        """Whether the rows can move: behind a body they have to stand where they began."""
        at_home = self.places[name] == self.shared.arena.rows[name]
        moves_again = any(isinstance(op, Add) and op.target == name for op in self.behind)
        return self.is_tail or not at_home or moves_again

    def alike(self, names: tuple[str, ...]) -> bool:
        """Whether some weights have one type and one size."""
        layouts = {self.shared.weights.matrix(name).layout for name in names}
        return len(layouts) == 1

    def is_unseen(self, name: str) -> bool:
        """Whether no operator behind the pattern at hand reads `name` before it is written anew."""
        for op in self.behind:
            if name in reads_of(op):
                return False
            if name in writes_of(op):
                return True
        return True

    def launch(
        self,
        name: str,
        grid: tuple[int, ...],
        block: int,
        args: ctypes.Structure,
        *,
        shared: int = 0,
        served: tuple[str, ...] = ("rows",),
        tensors: tuple[str, ...] = (),
        caches: tuple[int, ...] = (),
    ) -> None:
        """The next launch, behind which its entries were taken."""
        pipelines = self.shared.pipelines
        whole = (*grid, 1, 1)[:3]
        own = bisect_left(self.entries, len(self.launches), key=itemgetter(1))
        self.launches.append(
            Launch(
                pipelines.kernel(name, shared),
                pipelines.label(name, {"bucket": self.bucket}),
                Shape((whole[0], whole[1], whole[2]), block, shared),
                args,
                " ".join(nodes for nodes, _ in self.entries[own:]),
                served,
                tensors,
                caches,
            )
        )


def spare_room(name: str, width: int, rows: int) -> Mapping[str, int]:
    """Where rows stand that `Lowering.swap` has moved."""
    return {f"spare {name}": F32 * width * rows}


def inverse_of(number: float) -> float:
    """f32(1/number), of a norm's width or a cap."""
    return float(np.float32(1.0 / number))
