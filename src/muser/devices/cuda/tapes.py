"""A runner's tapes: each row bucket's body, up to where wanted rows are taken, and its tail."""

from collections.abc import Iterator
from dataclasses import dataclass

from muser.devices.cuda.buckets import FEW
from muser.devices.cuda.card import Card, Recording
from muser.devices.cuda.lowering import Lowering, Shared
from muser.devices.cuda.rowwise import first_token
from muser.devices.cuda.rules import logits_row, lower
from muser.devices.cuda.stepping import StepBlock
from muser.devices.cuda.tape import Tape
from muser.errors import DeviceError
from muser.graph import Op, TakeRows


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A tape and the step block that its kernels read."""

    tape: Tape
    block: StepBlock

    def queue(self, card: Card) -> None:
        self.block.send(card)
        self.tape.queue(card)
        self.block.fetch(card)

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
            b: _lowered(shared, block, b, body, tail) for b, block in arena.steps.items()
        }
        self._tails = (
            {b: _lowered(shared, block, b, tail, None) for b, block in arena.tails.items()}
            if tail
            else {}
        )
        self._recordings = {parts: self._recorded(parts) for parts in self._together()}

    def body(self, bucket: str) -> Part:
        """All rows of a step."""
        return self._bodies[bucket]

    def tail(self, bucket: str) -> Part:
        """The wanted rows, at most `HEAD_ROWS` at once: logits, and the first token of each."""
        return self._tails[bucket]

    def play(self, *parts: Part) -> None:
        """Plays some parts one after another and waits for the end. Raises `ArithmeticFault`."""
        self._recordings[parts].play()
        self.shared.card.wait()
        for part in parts:
            part.check()

    def _together(self) -> Iterator[tuple[Part, ...]]:
        """What a step plays as one: see `CudaRunner`."""
        for part in (*self._bodies.values(), *self._tails.values()):
            yield (part,)
        for bucket in FEW:
            if bucket in self._bodies and bucket in self._tails:
                yield self._bodies[bucket], self._tails[bucket]

    def _recorded(self, parts: tuple[Part, ...]) -> Recording:
        card = self.shared.card

        def queue() -> None:
            for part in parts:
                part.queue(card)

        return card.record(queue)


def _lowered(
    shared: Shared, block: StepBlock, bucket: str, ops: tuple[Op, ...], later: tuple[Op, ...] | None
) -> Part:
    """One part for the rows of `block`; `later` None: it is a tail."""
    low = Lowering(shared, block, bucket, block.rows, later is None)
    lower(low, ops, later or ())
    if later is None:
        first_token(low, logits_row(shared.graph.ops))
    if not low.launches:
        raise DeviceError("This graph has nothing to compute.", "Use another model.")
    return Part(Tape(tuple(low.launches), tuple(low.entries)), block)
