"""What every quantised block type unpacks to, and its values in f32."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Unpacked:
    """Rows of blocks as integers and scales.

    value = d · scales[group] · codes − dmin · mins[group] + offset, absent parts left out.
    Groups are equal stretches of a block in element order: 8 of 32 for Q4_K and Q5_K, 16 of 16
    for Q6_K. Codes are centred for Q8_0, Q4_0, Q5_0 and Q6_K, natural numbers for the others.
    """

    codes: NDArray[np.int16]  # [rows, blocks, elements]
    d: NDArray[np.float32]  # [rows, blocks]
    scales: NDArray[np.int16] | None = None  # [rows, blocks, groups]
    mins: NDArray[np.int16] | None = None  # [rows, blocks, 8]
    dmin: NDArray[np.float32] | None = None  # [rows, blocks]
    offset: NDArray[np.float32] | None = None  # [rows, blocks]

    def values(self) -> NDArray[np.float32]:
        """The rows in f32, `[rows, blocks · elements]`.

        Products of d, scale and code are exact (11 + 7 + 6 significant bits); the one
        subtraction or addition rounds.
        """
        rows, blocks, elements = self.codes.shape
        step = self.d[..., None]
        with np.errstate(invalid="ignore"):  # blocks that no loader accepts: 0 · inf
            if self.scales is not None:
                step = step * self.scales.astype(np.float32)
            grouped = self.codes.reshape(rows, blocks, step.shape[-1], -1).astype(np.float32)
            out = step[..., None] * grouped
            if self.mins is not None and self.dmin is not None:
                out = out - (self.dmin[..., None] * self.mins.astype(np.float32))[..., None]
            if self.offset is not None:
                out = out + self.offset[..., None, None]
        return np.asarray(out.reshape(rows, blocks * elements), np.float32)


def half(raw: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """The little-endian f16 at byte `at` of each block, as f32."""
    pairs = np.ascontiguousarray(raw[..., at : at + 2])
    return pairs.view("<f2")[..., 0].astype(np.float32)


def half_bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """f32 `[...]` rounded to f16, as bytes `[..., 2]`."""
    return values.astype("<f2")[..., None].view(np.uint8)
