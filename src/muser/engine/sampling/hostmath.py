"""exp, log, power and sums on the host, from f64 + − × ÷ alone.

The libraries' own (`math.exp`, `numpy.exp`, `numpy.sum`) differ in the last bit between platforms
and CPU dispatches, and one bit can change a drawn token. Here every operation is an IEEE one in a
fixed order; NumPy runs one operation per call, so none can be contracted to an fma.
`docs/sampling.md` gives the formulas.
"""

import math

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

# ln 2 in two parts (Cody and Waite; the split of fdlibm): n·LN2_HI is exact for |n| < 2^20.
LN2_HI = float.fromhex("0x1.62e42feep-1")
LN2_LO = float.fromhex("0x1.a39ef35793c76p-33")
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")

# Taylor coefficients, each rounded once; k! is exact in f64 up to 13!.
EXP_COEFFICIENTS = tuple(1.0 / math.factorial(k) for k in range(14))
LOG_COEFFICIENTS = tuple(1.0 / (2 * k + 1) for k in range(11))
EXP_LIMIT = 700.0
# Numbers in one go: small enough for the second cache, and no concern of the result.
PIECE = 16384


def exp(x: F64) -> F64:
    """e^x, elementwise, relative error below 2^-51; below −700 it is 0, above 700 taken as 700."""
    y = np.empty_like(x)
    for start in range(0, x.size, PIECE):
        y[start : start + PIECE] = _exp(x[start : start + PIECE])
    return y


def _exp(x: F64) -> F64:
    clipped = np.clip(x, -EXP_LIMIT, EXP_LIMIT)
    n = np.rint(clipped * LOG2_E)
    r = (clipped - n * LN2_HI) - n * LN2_LO
    y = np.full_like(r, EXP_COEFFICIENTS[13])
    for coefficient in EXP_COEFFICIENTS[12::-1]:
        y *= r
        y += coefficient
    scale = ((n.astype(np.int64) + 1023) << 52).view(np.float64)
    return np.where(x < -EXP_LIMIT, 0.0, y * scale)


def exp1(x: float) -> float:
    """`exp` of one number."""
    return float(exp(np.array([x]))[0])


def log(x: float) -> float:
    """The natural logarithm of a positive normal f64."""
    assert x > 0.0
    m, e = math.frexp(x)
    if m < SQRT_HALF:
        m, e = m * 2.0, e - 1
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    y = LOG_COEFFICIENTS[10]
    for coefficient in LOG_COEFFICIENTS[9::-1]:
        y = y * square + coefficient
    return e * LN2_HI + ((s + s) * y + e * LN2_LO)


def power(x: float, exponent: float) -> float:
    """x^exponent for x ≥ 0; 1 when the exponent is 0, x itself when it is 1."""
    if exponent == 0.0:
        return 1.0
    if exponent == 1.0 or x == 0.0:
        return x
    return exp1(exponent * log(x))


def tree_sum(x: F64) -> float:
    """Σx: zeros up to a power of two, then the upper half added to the lower until one is left."""
    lanes = np.zeros(1 << max(0, x.size - 1).bit_length())
    lanes[: x.size] = x
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = lanes[:half] + lanes[half:]
    return float(lanes[0])


def share_floor(part: float, total: int) -> int:
    """⌊part · total⌋, exactly."""
    numerator, denominator = part.as_integer_ratio()
    return numerator * total // denominator


def share_ceil(part: float, total: int) -> int:
    """⌈part · total⌉, exactly."""
    numerator, denominator = part.as_integer_ratio()
    return -(-numerator * total // denominator)
