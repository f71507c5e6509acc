"""The same step played in three ways, so that each launch's time is known without a guess.

As it is: kernels begin early. One after another: none begins before the one before it has ended.
Stamped: the same, and the clock is read around every piece. Each is one recording; the card's own
clock is read, so what the host does meanwhile takes no part.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muser.devices.cuda.card import Card
from muser.devices.cuda.tape import Launch
from muser.devices.cuda.tapes import Part

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Piece:
    """A launch of a step, or (None) the copies at an end of a part.

    `is_tail`: of the part whose rows are the wanted ones.
    """

    launch: Launch | None
    is_tail: bool


@dataclass(frozen=True, slots=True)
class Timed:
    """One play in each of the ways: nanoseconds, by the card's clock.

    `stamped`: of each of `pieces`. `logits`: f32 `[wanted, vocabulary]` of each of the three.
    """

    pieces: tuple[Piece, ...]
    whole: float
    serial: float
    stamped: tuple[float, ...]
    logits: tuple[F32, ...]


class Timing:
    """Recordings of some parts, in order, in each of the ways."""

    def __init__(self, card: Card, parts: tuple[Part, ...]) -> None:
        self._parts = parts
        self.pieces: tuple[Piece, ...] = tuple(
            Piece(launch, part is not parts[0])
            for part in parts
            for launch in (None, *part.tape.launches, None)
        )
        every = [one for part in parts for one in part.works(card)]

        def together() -> None:
            for one in every:
                one()

        self._whole = card.clocked([together], overlaps=True)
        self._serial = card.clocked([together], overlaps=False)
        self._stamped = card.clocked(every, overlaps=False)

    def round(self, logits: Callable[[], F32]) -> Timed:
        """Each way once; `logits` are taken after each.

        Raises `ArithmeticFault` if a row left the finite numbers.
        """
        times, rows = [], []
        for clocked in (self._whole, self._serial, self._stamped):
            times.append(clocked.play())
            for part in self._parts:
                part.check()
            rows.append(logits())
        (whole,), (serial,), stamped = times
        return Timed(self.pieces, whole, serial, tuple(stamped), tuple(rows))
