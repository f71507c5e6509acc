"""One sequence on a runner: which tokens its cache holds, and how more get in."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from muser.devices import Runner, Step

Number = TypeVar("Number", np.float32, np.int32)


class Slot:
    """A sequence in cache slot `index` of `runner`.

    `ids` are the tokens whose rows stand in the cache, in order. A step that raises leaves `ids`
    as they were: its rows are overwritten by the next step at the same positions.
    """

    def __init__(self, runner: Runner, index: int) -> None:
        self._runner = runner
        self._index = index
        self.ids: list[int] = []

    def clear(self) -> None:
        self.ids.clear()

    def append(self, ids: Sequence[int], outputs: Sequence[int], chunk: int) -> NDArray[np.float32]:
        """Logits f32 `[len(outputs), vocabulary]` of the rows `outputs` of `ids`.

        The tokens go through in steps of at most `chunk` rows; how they are cut changes no bit.
        """
        parts = self._played(self._runner.forward, ids, outputs, chunk)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def choose(self, ids: Sequence[int], chunk: int) -> int:
        """The first token in token order after the last of `ids`; otherwise as `append`."""
        return int(self._played(self._runner.choose, ids, [len(ids) - 1], chunk)[-1][0])

    def _played(
        self,
        play: Callable[[Step], NDArray[Number]],
        ids: Sequence[int],
        outputs: Sequence[int],
        chunk: int,
    ) -> list[NDArray[Number]]:
        """What every step answered."""
        wanted = np.asarray(outputs, np.int32)
        parts = []
        for start in range(0, len(ids), chunk):
            part = np.asarray(ids[start : start + chunk], np.int32)
            inside = wanted[(wanted >= start) & (wanted < start + len(part))] - start
            parts.append(play(self._step(part, inside)))
            self.ids.extend(part.tolist())
        return parts

    def _step(self, tokens: NDArray[np.int32], outputs: NDArray[np.int32]) -> Step:
        first = len(self.ids)
        return Step(
            tokens=tokens,
            positions=np.arange(first, first + len(tokens), dtype=np.int32),
            slots=np.full(len(tokens), self._index, np.int32),
            outputs=np.ascontiguousarray(outputs, np.int32),
        )
