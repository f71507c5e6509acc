"""A runner's tapes: each row bucket's body, up to where wanted rows are taken, and its tail."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from muser.devices.cuda.attending import FEW_TILES, MOST_TILES
from muser.devices.cuda.buckets import FEW
from muser.devices.cuda.card import Card, Recording
from muser.devices.cuda.lowering import Lowering, Shared
from muser.devices.cuda.rowwise import first_token
from muser.devices.cuda.rules import logits_row, lower
from muser.devices.cuda.stepping import StepBlock
from muser.devices.cuda.tape import Tape
from muser.devices.device import Step
from muser.errors import DeviceError
from muser.graph import Op, TakeRows
from muser.graph.arithmetic import TILE
from muser.kernels import bucket_of

REACHES = (FEW_TILES * TILE, MOST_TILES * TILE)  # positions; see `attending.py`
FIRST = 24  # launches and copies of few rows that are queued before the others


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A tape and the step block that its kernels read."""

    tape: Tape
    block: StepBlock

    def works(self, card: Card) -> list[Callable[[], None]]:
        """What it queues, piece by piece: the block up, the launches, what the host reads back."""
        launches = (partial(card.launch, x.kernel, x.shape, x.args) for x in self.tape.launches)
        return [partial(self.block.send, card), *launches, partial(self.block.fetch, card)]

    def check(self) -> None:
        """Raises `ArithmeticFault` if the last play, which has ended, met one."""
        word = self.block.fault
        if word is not None:
            raise self.tape.fault(word)


class Tapes:
    """Every part of every bucket that the limits allow, lowered and recorded at once: no request
    waits for that, or is the first to hear that a bucket has no pipeline.

    Of few rows a body and its own tail are one recording too, for steps that want every row.
    """

    def __init__(self, shared: Shared) -> None:
        """Raises `DeviceError` for what has no pipeline."""
        self.shared = shared
        ops, arena = shared.graph.ops, shared.arena
        cut = next((i for i, op in enumerate(ops) if isinstance(op, TakeRows)), len(ops))
        body, tail = ops[:cut], ops[cut:]
        self.has_tail = bool(tail)
        self._bodies = {
            (b, reach): _lowered(shared, block, b, body, tail, reach)
            for b, block in arena.steps.items()
            for reach in (_reaches(shared) if b in FEW else (shared.limits.context,))
        }
        self._tails = (
            {
                b: _lowered(shared, block, b, tail, None, shared.limits.context)
                for b, block in arena.tails.items()
            }
            if tail
            else {}
        )
        self._recordings = {
            parts: self._recorded(parts, FIRST if bucket in FEW else 0)
            for bucket, parts in self._together()
        }

    def body(self, step: Step) -> Part:
        """For all rows of this step."""
        bucket = bucket_of(len(step.tokens))
        last = max(step.positions.tolist())
        return next(
            part for (b, reach), part in self._bodies.items() if b == bucket and last < reach
        )

    def tail(self, bucket: str) -> Part:
        """The wanted rows, at most `HEAD_ROWS` at once: logits, and the first token of each."""
        return self._tails[bucket]

    def play(self, *parts: Part) -> None:
        """Plays some parts one after another and waits for the end. Raises `ArithmeticFault`."""
        for recording in self._recordings[parts]:
            recording.play()
        self.shared.card.wait()
        for part in parts:
            part.check()

    def _together(self) -> Iterator[tuple[str, tuple[Part, ...]]]:
        """What a step plays as one, and its bucket: see `CudaRunner`."""
        for (bucket, _), part in self._bodies.items():
            yield bucket, (part,)
            if bucket in FEW and bucket in self._tails:
                yield bucket, (part, self._tails[bucket])
        for bucket, part in self._tails.items():
            yield bucket, (part,)

    def _recorded(self, parts: tuple[Part, ...], first: int) -> tuple[Recording, ...]:
        """The first works apart: the card does them while the driver queues the others."""
        card = self.shared.card
        works = [work for part in parts for work in part.works(card)]

        def recorded(some: Sequence[Callable[[], None]]) -> Recording:
            def queue() -> None:
                for work in some:
                    work()

            return card.record(queue)

        return tuple(recorded(some) for some in (works[:first], works[first:]) if some)


def _reaches(shared: Shared) -> tuple[int, ...]:
    """Positions below which steps of few rows stand, ascending: each has tapes of its own."""
    context = shared.limits.context
    return (*(reach for reach in REACHES if reach < context), context)


def _lowered(
    shared: Shared,
    block: StepBlock,
    bucket: str,
    ops: tuple[Op, ...],
    later: tuple[Op, ...] | None,
    reach: int,
) -> Part:
    """One part for the rows of `block`; `later` None: it is a tail."""
    low = Lowering(shared, block, bucket, block.rows, is_tail=later is None, reach=reach)
    lower(low, ops, later or ())
    if later is None:
        first_token(low, logits_row(shared.graph.ops))
    if not low.launches:
        raise DeviceError("This graph has nothing to compute.", "Use another model.")
    return Part(Tape(tuple(low.launches), tuple(low.entries)), block)
