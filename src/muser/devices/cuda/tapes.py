"""A runner's tapes: each row bucket's body, up to where wanted rows are taken, and its tail."""

from collections.abc import Iterable
from dataclasses import dataclass

from muser.devices.cuda.arena import HEAD_ROWS, rows_of
from muser.devices.cuda.card import Card, Recording
from muser.devices.cuda.lowering import Lowering, Shared
from muser.devices.cuda.projecting import look_ahead
from muser.devices.cuda.rowwise import first_token
from muser.devices.cuda.rules import logits_row, lower
from muser.devices.cuda.stepping import StepBlock
from muser.devices.cuda.tape import Tape
from muser.errors import DeviceError
from muser.graph import TakeRows

JOINED = ("1", "4", "16")
"""Buckets whose body and tail are played as one recording where a step wants every row."""


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
    """Lowers and records each part when it is first wanted."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        ops = shared.graph.ops
        cut = next((i for i, op in enumerate(ops) if isinstance(op, TakeRows)), len(ops))
        self._ops = {"body": ops[:cut], "tail": ops[cut:]}
        self._parts: dict[tuple[str, str], Part] = {}
        self._recordings: dict[tuple[Part, ...], Recording] = {}

    @property
    def has_tail(self) -> bool:
        return bool(self._ops["tail"])

    def body(self, bucket: str) -> Part:
        """All rows of a step."""
        return self._part("body", bucket)

    def tail(self, bucket: str) -> Part:
        """The wanted rows, at most `HEAD_ROWS` at once: logits, and the first token of each."""
        return self._part("tail", bucket)

    def play(self, *parts: Part) -> None:
        """Plays some parts one after another and waits for the end. Raises `ArithmeticFault`."""
        card = self.shared.card
        if parts not in self._recordings:
            self._recordings[parts] = card.record(lambda: _queue(card, parts))
        self._recordings[parts].play()
        card.wait()
        for part in parts:
            part.check()

    def _part(self, which: str, bucket: str) -> Part:
        found = self._parts.get((which, bucket))
        if found is None:
            found = self._parts[which, bucket] = self._lowered(which, bucket)
        return found

    def _lowered(self, which: str, bucket: str) -> Part:
        limits, arena = self.shared.limits, self.shared.arena
        is_tail = which == "tail"
        most = rows_of(bucket, limits)
        rows = min(most, HEAD_ROWS) if is_tail else most
        block = (arena.tails if is_tail else arena.steps)[bucket]
        low = Lowering(self.shared, block, bucket, rows, is_tail)
        lower(low, self._ops[which], () if is_tail else self._ops["tail"])
        if is_tail:
            first_token(low, logits_row(self.shared.graph.ops))
        if not low.launches:
            raise DeviceError("This graph has nothing to compute.", "Use another model.")
        look_ahead(low.launches)
        return Part(Tape(tuple(low.launches), tuple(low.entries)), block)


def _queue(card: Card, parts: Iterable[Part]) -> None:
    for part in parts:
        part.queue(card)
