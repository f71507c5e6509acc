"""The arithmetic once more with rational numbers: slow, scalar, independent of NumPy's floats."""

from fractions import Fraction

import numpy as np


def round_f32(x: Fraction) -> Fraction:
    """The nearest binary32 value, ties to even, subnormals included; no overflow expected."""
    if x == 0:
        return Fraction(0)
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    return round(x / unit) * unit  # Python rounds halves to even


def fma(a: Fraction, b: Fraction, c: Fraction) -> Fraction:
    return round_f32(a * b + c)


def z(x: Fraction) -> Fraction:
    return Fraction(0) if abs(x) < Fraction(1, 2**40) else x


def fractions(x: np.ndarray) -> list[Fraction]:
    return [Fraction(float(value)) for value in np.asarray(x).ravel()]


def quantise(x: list[Fraction]) -> tuple[list[int], Fraction]:
    largest = max(abs(value) for value in x)
    if largest == 0:
        return [0] * len(x), Fraction(0)
    inverse = round_f32(Fraction(127) / largest)
    return [round(inverse * value) for value in x], round_f32(1 / inverse)


def floor_log2(x: Fraction) -> int:
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= x else exponent - 1


def grid(x: list[Fraction], precision: int, lowest: int) -> tuple[list[int], int]:
    largest = max(abs(value) for value in x)
    if largest == 0:
        return [0] * len(x), lowest
    step = max(floor_log2(largest) + 1 - precision, lowest)
    bound = 2**precision - 1
    codes = [max(-bound, min(bound, round(value / Fraction(2) ** step))) for value in x]
    return codes, step


def exp(x: Fraction) -> Fraction:
    """`docs/arithmetic.md` 5 read aloud, as are the five functions below."""
    if x < -80:
        return Fraction(0)
    x, magic = min(x, Fraction(80)), constant("0x1.8p23")
    n = fma(x, constant("0x1.715476p+0"), magic) - magic
    r = fma(-n, constant("0x1.62e4p-1"), x)
    r = fma(-n, constant("0x1.7f7d1cp-20"), r)
    scale, square = Fraction(2) ** int(n), round_f32(r * r)
    high = fma(constant("0x1.0e4020p-7"), r, constant("0x1.573e2ep-5"))
    p = fma(high, square, fma(constant("0x1.555e66p-3"), r, constant("0x1.fffdb6p-2")))
    rest = fma(p, square, round_f32(constant("0x1.ffffecp-1") * r))
    return fma(rest, scale, scale)


def sigmoid(x: Fraction) -> Fraction:
    e = exp(-abs(x))
    return round_f32((1 if x >= 0 else e) / round_f32(1 + e))


def silu(x: Fraction) -> Fraction:
    return round_f32(x * sigmoid(x))


def tanh(x: Fraction) -> Fraction:
    e = exp(-2 * abs(x))
    t = round_f32(round_f32(1 - e) / round_f32(1 + e))
    return t if x >= 0 else -t


def gelu(x: Fraction) -> Fraction:
    cubic = fma(round_f32(round_f32(constant("0x1.6e4e26p-5") * x) * x), x, x)
    t = tanh(round_f32(constant("0x1.988454p-1") * cubic))
    return round_f32(round_f32(x / 2) * round_f32(1 + t))


def softcap(x: Fraction, cap: int) -> Fraction:
    return z(round_f32(cap * tanh(round_f32(x * round_f32(Fraction(1, cap))))))


def constant(text: str) -> Fraction:
    return Fraction(float.fromhex(text))


def exp2_fraction(f: Fraction) -> Fraction:
    coefficients = (
        "0x1.cacdf6p-13", "0x1.44bd44p-10", "0x1.3d5826p-7", "0x1.c67ee4p-5",
        "0x1.ebfdf8p-3", "0x1.62e428p-1", "0x1p+0",
    )  # fmt: skip
    total = Fraction(0)
    for text in coefficients:
        total = fma(total, f, constant(text))
    return total


def attention(
    q: list[Fraction],
    keys: list[list[Fraction]],
    values: list[list[Fraction]],
    first: int,
    last: int,
    scale: float,
) -> list[Fraction]:
    """One query head over stored rows; `docs/arithmetic.md` 7 read aloud."""
    dim = len(q)
    qi, eq = grid(q, 20 - (dim - 1).bit_length(), -60)
    c = round_f32(Fraction(scale * 1.4426950408889634))
    state = None
    for tile in range(first // 128, (last + 127) // 128):
        rows = range(max(first, 128 * tile), min(last, 128 * tile + 128))
        n, g, ev, vi = [], [], [], []
        for row in rows:
            ki, ek = grid(keys[row], 11, -24)
            codes, step = grid(values[row], 11, -24)
            dot = round_f32(Fraction(sum(a * b for a, b in zip(qi, ki, strict=True))))
            y = round_f32(dot * round_f32(c * Fraction(2) ** (eq + ek)))
            n.append(y.numerator // y.denominator)
            g.append(exp2_fraction(round_f32(y - n[-1])))
            ev.append(step)
            vi.append(codes)
        top = max(n)
        top_v = max(a + b for a, b in zip(n, ev, strict=True))
        weight = round_f32(
            Fraction(
                sum(round(x * Fraction(2) ** (20 + k - top)) for x, k in zip(g, n, strict=True))
            )
        )
        p = [
            round(x * Fraction(2) ** (12 + k + e - top_v)) for x, k, e in zip(g, n, ev, strict=True)
        ]
        sums = [
            z(round_f32(Fraction(sum(a * row[i] for a, row in zip(p, vi, strict=True)))))
            for i in range(dim)
        ]
        if state is None:
            state = (top, top_v, weight, sums)
            continue
        r, x, den, acc = state
        r2, x2 = max(r, top), max(x, top_v)

        def moved(value: Fraction, shift: int) -> Fraction:
            return value * Fraction(2) ** max(shift, -100)

        den = round_f32(moved(den, r - r2) + moved(weight, top - r2))
        acc = [
            z(round_f32(z(moved(a, x - x2)) + z(moved(b, top_v - x2))))
            for a, b in zip(acc, sums, strict=True)
        ]
        state = (r2, x2, den, acc)
    r, x, den, acc = state
    return [z(round_f32(a / den) * Fraction(2) ** (x - r + 8)) for a in acc]
