"""Token texts as bytes, to their ids: a table of a quarter of a million items, built as needed."""

from collections.abc import Mapping, Sequence

import numpy as np

from muser.errors import FormatError
from muser.text.strings import Table, read_table

ALL = frozenset(range(256))


class Lexicon:
    """Finds the id of a token by its bytes.

    A piece of a text has no byte that the text has not, so tokens with other bytes need no entry:
    a short prompt takes a tenth of a vocabulary. The next text that needs more gets all of it.
    `left_out` are tokens that no text may become.
    """

    def __init__(self, texts: Sequence[str], left_out: frozenset[int]) -> None:
        self.table: Table = read_table(texts)
        self._left_out = left_out
        self._covered: tuple[frozenset[int], Mapping[bytes, int]] = (frozenset(), {})

    def covering(self, raw: bytes) -> Mapping[bytes, int]:
        """All tokens that are made of the bytes of `raw`, and perhaps more.

        Raises FormatError for two tokens of the same text.
        """
        needed = frozenset(raw)
        held, ids = self._covered
        if not needed <= held:
            held = ALL if ids else needed
            ids = self._gather(held)
            self._covered = (held, ids)
        return ids

    def _gather(self, held: frozenset[int]) -> dict[bytes, int]:
        raw, starts, ends = self.table
        foreign = np.ones(256, np.bool_)
        foreign[list(held)] = False
        counts = np.cumsum(foreign[raw], dtype=np.int32 if len(raw) < 1 << 31 else np.int64)
        fits = (counts[ends - 1] == counts[starts - 1]) & (ends > starts)
        fits[list(self._left_out)] = False
        chosen = np.flatnonzero(fits)
        data = raw.tobytes()
        spans = zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)
        ids = dict(zip((data[a:b] for a, b in spans), chosen.tolist(), strict=True))
        if len(ids) < len(chosen):
            raise FormatError(
                "Two tokens of this file have the same text.",
                "Fetch the file again or convert the model again.",
            )
        return ids
