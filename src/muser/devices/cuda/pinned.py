"""Host memory that a card copies from and to."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from muser.devices.cuda.card import Address, Card

PIECE = 4 << 20  # bytes that are under way at once


class Pinned:
    """One piece of pinned memory, made once, through which arrays of any size go in turn."""

    def __init__(self, card: Card) -> None:
        self._card, self._host = card, card.pinned(PIECE)

    def up(self, where: Address, rows: NDArray[np.generic]) -> None:
        """All bytes of a contiguous array, to the card; they are there when it returns."""
        for first, some in _pieces(rows):
            host = self._host[: some.size]
            host[:] = some
            self._card.upload(where + first, host)
            self._card.wait()

    def down(self, rows: NDArray[np.generic], where: Address) -> None:
        """All bytes of a contiguous array, from the card, once what was queued is done."""
        for first, some in _pieces(rows):
            host = self._host[: some.size]
            self._card.download(host, where + first)
            self._card.wait()
            some[:] = host


def _pieces(rows: NDArray[np.generic]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Where each piece of an array begins, and its bytes."""
    whole = rows.reshape(-1).view(np.uint8)
    for first in range(0, whole.size, PIECE):
        yield first, whole[first : first + PIECE]
