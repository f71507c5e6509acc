"""The table of the arithmetic, a million more words a rule, and the matrix units' worst cases."""

import numpy as np
from card import Card, build
from numpy.typing import NDArray
from table import Line

from muser.graph import conformance as page
from muser.graph.arithmetic import exp2_fraction, f32, fma, rne_fma, z

U32 = NDArray[np.uint32]
MANY = 1 << 20


def words(x: NDArray[np.generic]) -> U32:
    return np.ascontiguousarray(x).view(np.uint32)


def some_floats(rng: np.random.Generator, low: int, high: int, count: int = MANY) -> U32:
    """Random signs and fractions, exponents low…high."""
    exponent = rng.integers(low + 127, high + 128, count, dtype=np.uint32) << np.uint32(23)
    noise = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    return (noise & np.uint32(0x807FFFFF)) | exponent


def half_way_triples(rng: np.random.Generator) -> tuple[U32, U32, U32]:
    """Factors of 12 bits whose product ends on half an ulp, and a tiny addend (rule A3)."""
    a = rng.integers(1 << 11, 1 << 12, MANY).astype(np.float32) * np.float32(2.0**-11)
    b = rng.integers(1 << 11, 1 << 12, MANY).astype(np.float32) * np.float32(2.0**-11)
    tiny = np.ldexp(np.float32(1), rng.integers(-80, -40, MANY)).astype(np.float32)
    sign = np.where(rng.integers(0, 2, MANY) == 1, np.float32(1), np.float32(-1))
    return words(a), words(b), words((tiny * sign).astype(np.float32))


Case = tuple[str, int, U32, U32, U32, U32]


def table_cases() -> list[Case]:
    a, b, c, r = (page.column(page.FMA, i) for i in range(4))
    x = page.column(page.RNE, 0)
    factor = np.full_like(x, f32(page.RNE_FACTOR))
    codes = np.array([n for _, n in page.RNE], np.int32)
    i = np.array([n for n, _ in page.INT32_TO_F32], np.int32)
    wide = np.array([n for n, _ in page.INT64_TO_F32], np.uint64)
    low, high = wide.astype(np.uint32), (wide >> np.uint64(32)).astype(np.uint32)
    h = np.array([n for _, n in page.F32_TO_F16], np.uint32)
    none = np.zeros(8, np.uint32)
    return [
        ("fma", 0, words(a), words(b), words(c), words(r)),
        ("rne of a product", 1, words(factor), words(x), none, words(codes)),
        ("int32 to f32", 2, words(i), none, none, words(page.column(page.INT32_TO_F32, 1))),
        ("int64 to f32", 3, low, high, none, words(page.column(page.INT64_TO_F32, 1))),
        ("f32 to f16", 4, words(page.column(page.F32_TO_F16, 0)), none, none, h),
        (
            "division",
            6,
            words(page.column(page.DIVIDE, 0)),
            words(page.column(page.DIVIDE, 1)),
            none,
            words(page.column(page.DIVIDE, 2)),
        ),
        (
            "1/sqrt",
            7,
            words(page.column(page.INVERSE_ROOT, 0)),
            none,
            none,
            words(page.column(page.INVERSE_ROOT, 1)),
        ),
    ]


def random_cases(rng: np.random.Generator) -> list[Case]:
    def f(x: U32) -> NDArray[np.float32]:
        return x.view(np.float32)

    a, b, c = (some_floats(rng, -60, 60) for _ in range(3))
    near = words((f(a).astype(np.float64) * f(b)).astype(np.float32) * np.float32(-1.0000001))
    ha, hb, hc = half_way_triples(rng)
    small = some_floats(rng, -126, -63)
    codes = some_floats(rng, -20, 0)
    factor = some_floats(rng, 0, 6)
    positive = some_floats(rng, -126, 127) & np.uint32(0x7FFFFFFF)
    integers = rng.integers(-(2**31), 2**31, MANY, dtype=np.int64).astype(np.int32)
    wide = rng.integers(-(2**62), 2**62, MANY, dtype=np.int64)
    halves = np.arange(65536, dtype=np.uint32)
    halves = halves[(halves & 0x7C00) != 0x7C00]
    fraction = words(rng.random(MANY, np.float32))
    score = words(((rng.random(MANY) - 0.5) * 2.0**22).astype(np.float32))
    none = np.zeros(1, np.uint32)
    to_half = some_floats(rng, -27, 14)
    floors = np.floor(f(score)).astype(np.int32)
    quotient = some_floats(rng, -30, 30)
    return [
        ("fma", 0, a, b, c, words(fma(f(a), f(b), f(c)))),
        ("fma, cancelling", 0, a, b, near, words(fma(f(a), f(b), f(near)))),
        ("fma, half-way products", 0, ha, hb, hc, words(fma(f(ha), f(hb), f(hc)))),
        ("fma, subnormal results", 0, small, small, none, words(fma(f(small), f(small), f(none)))),
        (
            "rne of a product",
            1,
            factor,
            codes,
            none,
            words(rne_fma(f(factor), f(codes)).astype("i4")),
        ),
        ("int32 to f32", 2, words(integers), none, none, words(integers.astype(np.float32))),
        (
            "int64 to f32",
            3,
            wide.astype(np.uint64).astype(np.uint32),
            (wide.astype(np.uint64) >> np.uint64(32)).astype(np.uint32),
            none,
            words(wide.astype(np.float32)),
        ),
        ("f32 to f16", 4, to_half, none, none, _halves(f(to_half))),
        ("f16 to f32, all", 5, halves, none, none, _from_halves(halves)),
        ("division", 6, a, quotient, none, words(f(a) / f(quotient))),
        ("1/sqrt", 7, positive, none, none, words(np.float32(1) / np.sqrt(f(positive)))),
        ("z", 8, small, none, none, words(z(f(small)))),
        ("E(f)", 9, fraction, none, none, words(exp2_fraction(f(fraction)))),
        ("sum", 10, a, near, none, words(f(a) + f(near))),
        ("product", 11, a, b, none, words(f(a) * f(b))),
        ("floor by rounding down", 12, score, none, none, words(floors)),
    ]


def _halves(x: NDArray[np.float32]) -> U32:
    return x.astype(np.float16).view(np.uint16).astype(np.uint32)


def _from_halves(x: U32) -> U32:
    return words(x.astype(np.uint16).view(np.float16).astype(np.float32))


def run_case(card: Card, kernel: object, probe: str, case: Case) -> Line:
    name, rule, a, b, c, want = case
    n = len(want)
    sources = [card.put(np.resize(x, n)) for x in (a, b, c)]
    out = card.empty(4 * n)
    card.launch(kernel, ((n + 255) // 256,), 256, *sources, out, rule, n)
    got = card.get(out, (n,), np.uint32)
    return Line(probe, name, n, int(np.count_nonzero(got != want)))


def grid_case(card: Card, kernel: object) -> Line:
    x = page.column(page.GRID, 0)
    want = np.array([*(n for _, n in page.GRID), page.GRID_STEP], np.int32)
    out = card.empty(want.nbytes)
    card.launch(kernel, (1,), 256, card.put(x), out, len(x), 11, -24)
    got = card.get(out, want.shape, np.int32)
    return Line("table", "G(x, 11, −24)", len(want), int(np.count_nonzero(got != want)))


def norm_case(card: Card, kernel: object, vector: page.NormVector) -> Line:
    n, out = vector.count, card.empty(4 * vector.count)
    card.launch(
        kernel,
        (1,),
        256,
        card.put(vector.row()),
        card.put(vector.weight()),
        out,
        n,
        np.float32(1.0 / n),
        np.float32(page.NORM_EPS),
    )
    got = page.digest(card.get(out, (n,), np.float32))
    return Line("digest", f"norm of {n}", 1, int(got != vector.digest))


def matrix_cases(
    rng: np.random.Generator,
) -> list[tuple[str, NDArray[np.int16], NDArray[np.int16]]]:
    """Digits [16, k] and codes [8, k] of the matrix units, worst cases of 2.6 and B3."""
    sign = np.where(np.arange(128) % 2, -1, 1)
    full, half = np.ones((16, 128), np.int64), np.ones((8, 128), np.int64)
    random = rng.integers(-64, 65, (16, 128)), rng.integers(-2047, 2048, (8, 128))
    last = full * 64
    last[:, 127] = 63
    pairs = [
        ("64 × 2047 over 128", full * 64, half * 2047),
        ("64 × 2047, last digit 63", last, half * 2047),
        ("64 × 2047, signs alternate in both", full * 64 * sign, half * 2047 * sign),
        ("64 × 2047, signs alternate in one", full * 64 * sign, half * 2047),
        ("128 × 2047 over 64", full[:, :64] * 128, half[:, :64] * 2047),
        ("random", *random),
    ]
    return [(name, a.astype(np.int16), b.astype(np.int16)) for name, a, b in pairs]


def matrix_case(card: Card, kernel: object, name: str, a: NDArray, b: NDArray, shift: int) -> Line:
    got, want = card.empty(512), card.empty(512)
    card.launch(kernel, (1,), 32, card.put(a), card.put(b), got, want, a.shape[1], shift)
    exact = (a.astype(np.int64) @ b.T.astype(np.int64)).astype(np.float32)
    bad = np.count_nonzero(card.get(got, (16, 8), np.float32) != exact)
    bad += np.count_nonzero(card.get(want, (16, 8), np.int32) != exact)
    return Line("f16 units", f"{name}, step 2^{-shift}", 256, int(bad))


def run(card: Card, rng: np.random.Generator) -> list[Line]:
    kernels = card.kernels(
        build(["conformance"]), primitives=0, grid_row=0, norm_row=0, matrix_unit=0
    )
    lines = [run_case(card, kernels["primitives"], "table", case) for case in table_cases()]
    lines.append(grid_case(card, kernels["grid_row"]))
    lines += [norm_case(card, kernels["norm_row"], vector) for vector in page.NORMS]
    lines += [run_case(card, kernels["primitives"], "random", case) for case in random_cases(rng)]
    for name, a, b in matrix_cases(rng):
        lines += [matrix_case(card, kernels["matrix_unit"], name, a, b, s) for s in (0, 8)]
    card.release()
    return lines
