"""What is kept of a row of logits, so that whole rows need not be.

A row is one position's logits over the vocabulary. Everything is computed in float64, a block of
rows at a time, so that 512 rows of 49,152 logits never stand in memory twice.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 32


@dataclass(frozen=True, slots=True)
class Scores:
    """One entry a row: `top` the id of the largest logit (lowest id of equals), `margin` that
    logit minus the next one, `loss` −log softmax at the row's target, in nats."""

    top: NDArray[np.int64]
    margin: NDArray[np.float64]
    loss: NDArray[np.float64]

    @classmethod
    def join(cls, parts: list[Self]) -> Self:
        """One after the other."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})

    def save(self, path: Path) -> None:
        """Write to `path` (`.npz`), whole or not at all."""
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, top=self.top, margin=self.margin, loss=self.loss)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        with np.load(path) as kept:
            return cls(kept["top"], kept["margin"], kept["loss"])


def score(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> Scores:
    """Scores of f32 `[n, vocabulary]` logits, whose row i predicts `targets[i]`."""
    blocks = range(0, len(logits), BLOCK_ROWS)
    return Scores.join(
        [_score(logits[i : i + BLOCK_ROWS], targets[i : i + BLOCK_ROWS]) for i in blocks]
    )


def _score(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> Scores:
    top = np.argmax(logits, axis=1)
    first_two = np.partition(logits, -2, axis=1)[:, -2:].astype(np.float64)
    largest = first_two[:, 1]
    sums = np.exp(logits - largest[:, None], dtype=np.float64).sum(axis=1)
    at_target = np.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    return Scores(top, largest - first_two[:, 0], np.log(sums) + (largest - at_target))
