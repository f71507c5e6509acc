"""Rules of norms: alone, or with the sum and the branch's norm in front of them."""

from muser.devices.cuda.lowering import Lowering, inverse_of
from muser.devices.cuda.sources import Before
from muser.devices.cuda.structs import Norm
from muser.graph import Add, RmsNorm

ALONE, ADDED, NORMED = range(3)
KERNELS = ("rms_norm", "add_norm", "norm_add_norm")
LANES = 256  # threads of a row
MOST = 2  # rows of a thread block
RESERVED = 8 * MOST * LANES  # bytes of shared memory: the kernels' own variables
F32 = 4


def kind_of(before: Before) -> int:
    if before.add is None:
        return ALONE
    return ADDED if before.branch is None else NORMED


def held_rows(low: Lowering, before: Before) -> int:
    """How many neighbouring rows a thread block holds in shared memory; 0: it can hold none."""
    assert before.norm is not None
    width = low.width(before.norm.source)
    room = low.shared.card.facts.shared - RESERVED
    fitting = 0 if width % 4 else room // row_bytes(low, before)
    return min(fitting, MOST if low.bucket == "chunk" else 1)


def row_bytes(low: Lowering, before: Before) -> int:
    """Shared memory of one row: what is normed, and what is added to it."""
    assert before.norm is not None
    return F32 * low.width(before.norm.source) * (1 if before.add is None else 2)


def norm_of(low: Lowering, before: Before, held: int) -> Norm:
    """The kernels' argument; the norm's rows go to their own place."""
    branch, add, norm = before.branch, before.add, before.norm
    assert norm is not None
    nodes = [op.node for op in (branch, add, norm) if op is not None]
    width = low.width(norm.source)
    made = Norm(width=width, held=held, inverse=inverse_of(width), step=low.pointers())
    made.faults = low.faults(*nodes)
    made.x, made.out = low.row(norm.source), low.row(norm.target)
    made.weight, made.eps = low.norm_weight(norm.weight), norm.eps
    if add is not None:
        made.x, made.other, made.sum = low.row(add.left), low.row(add.right), low.row(add.target)
    if branch is not None:
        made.x = low.row(branch.source)
        made.first_weight, made.first_eps = low.norm_weight(branch.weight), branch.eps
    return made


def norm(low: Lowering, op: RmsNorm) -> bool:
    return _launch(low, Before(norm=op))


def add_norm(low: Lowering, op: Add, after: RmsNorm) -> bool:
    return after.source == op.target and _launch(low, Before(add=op, norm=after))


def norm_add_norm(low: Lowering, before: RmsNorm, op: Add, after: RmsNorm) -> bool:
    chained = before.target == op.left != op.right and after.source == op.target
    if not chained or not low.is_unseen(op.left):
        return False
    return _launch(low, Before(before, None, op, after))


def _launch(low: Lowering, before: Before) -> bool:
    rows = held_rows(low, before)
    args = norm_of(low, before, int(rows > 0))
    shared, each = rows * row_bytes(low, before), max(rows, 1)
    grid = (-(-low.rows // each),)
    low.launch(KERNELS[kind_of(before)], grid, LANES * each, args, shared=shared)
    return True
