"""Many rows times a Q4_K matrix on the int8 units, all outputs compared, samples with NumPy."""

import numpy as np
from card import Card, Pointer, build
from q4k import activations, different, matrix, projected
from table import INT8_ROOF, Line

TOKENS, COLUMNS, ROWS = 4096, 6656, 19968
TILE_BYTES, WEIGHT_BYTES, STAGES = 37376, 128 * 144, 4
SHARED = STAGES * (-(-(TILE_BYTES + WEIGHT_BYTES) // 1024) * 1024) + STAGES * 16
SAMPLE_ROWS, SAMPLE_TOKENS = 512, 64
# One token of the 30B model of the project is 54.3 GFLOP of projections.
FLOP_A_TOKEN = 54.3e9


def quantise(card: Card, kernels: dict[str, object], x: np.ndarray) -> tuple[Pointer, ...]:
    tokens, blocks = x.shape[0], x.shape[1] // 256
    source = card.put(x)
    tiles = card.empty(tokens // 128 * blocks * TILE_BYTES)
    q, scales = card.empty(tokens * blocks * 272), card.empty(tokens * blocks * 4)
    card.launch(kernels["quantise_tiles"], (blocks, tokens), 32, source, tiles, blocks)
    card.launch(kernels["quantise_row"], (blocks * tokens,), 32, source, q, scales)
    return tiles, q, scales


def against_numpy(rng, x: np.ndarray, raw: np.ndarray, out: np.ndarray) -> tuple[int, int]:
    """Sampled outputs, row 0 and tokens 0 to 2 (the worst cases) among them."""
    rows = np.unique(np.r_[0, 63:66, 127:130, rng.choice(len(raw), SAMPLE_ROWS, replace=False)])
    tokens = np.unique(np.r_[0:3, 127:129, rng.choice(len(x), SAMPLE_TOKENS, replace=False)])
    want = projected(x[tokens], raw[rows])
    return want.size, different(out[np.ix_(tokens, rows)], want)


def run(card: Card, rng: np.random.Generator) -> list[Line]:
    image = build(["warpgroup", "q4k", "quantise", "gemm"])
    kernels = card.kernels(image, gemm=SHARED, plain=0, quantise_tiles=0, quantise_row=0)
    x, raw = activations(rng, TOKENS, COLUMNS), matrix(rng, ROWS, COLUMNS)
    blocks = COLUMNS // 256
    weights, (tiles, q, scales) = card.put(raw), quantise(card, kernels, x)
    weight_map = card.tensor_map(weights, ROWS, blocks * 144, 144, 1)
    failed, out, other = card.zeros(4), card.empty(TOKENS * ROWS * 4), card.empty(TOKENS * ROWS * 4)

    def work() -> None:
        card.launch(
            kernels["gemm"],
            (card.processors,),
            384,
            weight_map,
            tiles,
            out,
            failed,
            ROWS,
            TOKENS,
            blocks,
            shared=SHARED,
        )

    work()
    card.launch(
        kernels["plain"], (TOKENS // 128, ROWS), 128, weights, q, scales, other, ROWS, blocks
    )
    got = card.get(out, (TOKENS, ROWS), np.float32)
    want = card.get(other, (TOKENS, ROWS), np.float32)
    fault = int(card.get(failed, (1,), np.uint32)[0] != 0)
    lines = [Line("GEMM", "all outputs, plain kernel", got.size, different(got, want) + fault)]
    lines.append(Line("GEMM", "sampled outputs, NumPy", *against_numpy(rng, x, raw, got)))
    seconds = card.time(work, 1)
    flop = 2.0 * TOKENS * ROWS * COLUMNS / seconds.median
    rate = f"{flop / 1e12:.0f} TOP/s ({2 * flop / 1e12:.0f} int8 issued, "
    rate += f"{2 * flop / INT8_ROOF:.0%} of library int8), {flop / FLOP_A_TOKEN:,.0f} tok/s"
    lines.append(Line("GEMM", f"{TOKENS}×{ROWS}×{COLUMNS}", 0, 0, seconds.median, rate))
    card.release()
    return lines
