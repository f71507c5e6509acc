"""Rotation tables, the same bits everywhere: an f32 angle and an integer sine.

The rule is `docs/arithmetic.md` 6, for every base and head size. No libm is involved.
"""

from decimal import Decimal, localcontext

import numpy as np

from muser.errors import ModelError
from muser.graph.arithmetic import F32, I64
from muser.graph.ops import RopeSpec

PHASE = float.fromhex("0x1.45f306dc9c883p+29")  # 2^32 / 2π
SIN = (0, 843314857, 0, -86699833, 0, 2673908, 0, -38839)  # Q30, ascending powers
COS = (1073741823, 0, -331167724, 0, 17017653, 0, -341628)
SMALLEST_FACTOR = 2.0**-8  # with a base of 1 or more and 2^24 positions, phases stay below 2^62


def angle_factor(base: float, rotated: int) -> np.float32:
    """base^(−2/rotated), rounded once to f32."""
    with localcontext() as context:
        context.prec = 60
        exact = (Decimal(base).ln() * Decimal(-2) / Decimal(rotated)).exp()
    near = np.float32(float(exact))
    candidates = (np.nextafter(near, np.float32(0)), near, np.nextafter(near, np.float32(2)))
    return min(candidates, key=lambda c: abs(Decimal(float(c)) - exact))


def _horner(coefficients: tuple[int, ...], x: I64) -> I64:
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total >>= 32
        if coefficient:
            total += coefficient
    return total


def sine_and_cosine(theta: F32) -> tuple[F32, F32]:
    """sin and cos of f32 angles ≥ 0 by a 32-bit integer phase."""
    phase = np.floor(theta.astype(np.float64) * PHASE + 0.5).astype(np.int64) & 0xFFFFFFFF
    quadrant = phase >> 30
    mirrored = (phase >> 29) & 1
    x = (phase & 0x1FFFFFFF) << 3
    x = np.where(mirrored, ((1 << 32) - x) - (x == 0), x)
    sin, cos = _horner(SIN, x), _horner(COS, x)
    swapped = mirrored != quadrant & 1  # by the mirror, and by each quarter turn
    unit = np.float32(2.0**-30)
    s = np.where(swapped, cos, sin).astype(np.float32) * unit
    c = np.where(swapped, sin, cos).astype(np.float32) * unit
    np.negative(s, out=s, where=quadrant >= 2)
    np.negative(c, out=c, where=quadrant + 1 & 2 == 2)
    return s, c


def rope_table(spec: RopeSpec, positions: int, factors: F32 | None = None) -> F32:
    """(cos, sin) of every position and pair: f32 `[positions, rotated/2, 2]`.

    `factors` f32 `[rotated/2]` divide the angles (`rope_freqs.weight`). Raises `ModelError` for a
    base or a factor whose angles do not fit the phase: machines would cut them differently.
    """
    _check_angles(spec, factors)
    step = angle_factor(spec.base, spec.rotated)
    table = np.empty((spec.rotated // 2, 2, positions), np.float32)
    theta = np.arange(positions, dtype=np.float32)
    for pair in range(spec.rotated // 2):
        angle = theta if factors is None else theta / factors[pair]
        angle = angle * np.float32(spec.scale)
        table[pair, 1], table[pair, 0] = sine_and_cosine(angle)
        theta = theta * step
    return np.ascontiguousarray(table.transpose(2, 0, 1))


def _check_angles(spec: RopeSpec, factors: F32 | None) -> None:
    if not 0 < spec.scale <= 1:
        raise ModelError(
            f"Angles times {spec.scale:g} would leave the integer phase.",
            "Linear scaling divides angles by 1 or more.",
        )
    small = factors is not None and not bool(np.all(factors >= SMALLEST_FACTOR))
    if spec.base < 1 or small:
        what = spec.factors if small else f"The base {spec.base:g}"
        raise ModelError(
            f"{what} of the rotation is too small: angles would leave the integer phase.",
            f"A base is at least 1, a factor at least 1/{round(1 / SMALLEST_FACTOR)}.",
        )
