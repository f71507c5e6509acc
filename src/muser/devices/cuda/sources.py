"""What a projection's rows are made of: as they stand, after a norm, or after the residual sum."""

from dataclasses import dataclass

from muser.devices.cuda.lowering import Lowering, inverse_of
from muser.devices.cuda.projection_structs import Source
from muser.graph import Add, RmsNorm, TakeRows

READY, PLAIN, NORM, RESIDUAL = range(4)


@dataclass(frozen=True, slots=True)
class Before:
    """The operators in front of a projection that its own kernel does: each may be missing.

    In order: the branch's norm, the wanted rows taken, branch and stream added, their sum's norm.
    """

    branch: RmsNorm | None = None
    take: TakeRows | None = None
    add: Add | None = None
    norm: RmsNorm | None = None

    @property
    def kind(self) -> int:
        if self.add is not None:
            return RESIDUAL
        return PLAIN if self.norm is None else NORM

    def source(self, low: Lowering, name: str) -> Source:
        """For rows called `name`. The sum goes to another place than the stream it was made of."""
        made = Source(kind=self.kind, width=low.width(name), row=low.row(name))
        norm, add = self.norm, self.add
        if norm is None:
            return made
        made.row = low.row(norm.source)
        made.weight = low.norm_weight(norm.weight)
        made.inverse, made.eps = inverse_of(low.width(name)), norm.eps
        made.norm_entry = low.entry_of(norm.node)
        if add is None:
            return made
        made.row, made.other = low.row(add.left), low.row(add.right)
        made.sum_entry = low.entry_of(add.node)
        made.sum = low.swap(add.target)
        if self.branch is not None:
            made.branch_norm, made.branch_eps = 1, self.branch.eps
            made.branch_entry = low.entry_of(self.branch.node)
            made.branch_weight = low.norm_weight(self.branch.weight)
        if self.take is not None:
            made.take = low.pointers().outputs
        return made


def fits(before: Before, source: str) -> bool:
    """Whether the operators hand their rows on to each other, and to a projection of `source`."""
    branch, take, add, norm = before.branch, before.take, before.add, before.norm
    if norm is None:
        return branch is None and take is None and add is None
    if norm.target != source or (add is not None and norm.source != add.target):
        return False
    if add is not None and add.target != add.right:
        return False
    if branch is not None and (add is None or not branch.source == branch.target == add.left):
        return False
    return take is None or (add is not None and set(take.rows) == {add.left, add.right})
