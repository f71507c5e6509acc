"""One row times a Q4_K matrix: equal to the oracle in every output, then timed from memory."""

from dataclasses import dataclass

import numpy as np
from card import Card, Pointer, build
from q4k import activations, different, matrix, projected
from table import READ_ROOF, Line

SHAPES = ((6656, 19968), (6656, 39936), (19968, 6656), (4096, 6656))
SHARED = 227 * 1024
STREAMED = 640e6  # bytes a timing walks through, ten times the second-level cache
CHECKED = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """Blocks a multiprocessor, warps a block, copies in flight a warp, overlapped launches."""

    spread: int
    warps: int
    stages: int
    early: bool


PLANS = (
    Plan(1, 16, 2, False),
    Plan(1, 16, 2, True),
    Plan(1, 8, 4, True),
    Plan(1, 12, 3, True),
    Plan(1, 16, 1, True),
)


def shared_bytes(plan: Plan, blocks: int, rows: int, grid: int) -> int:
    most = -(-rows // grid)
    ring = plan.warps * plan.stages * (32 * 144 + 8)
    return ring + blocks * 272 + (blocks + 1) // 2 * 8 + most * (blocks | 1) * 4


@dataclass(slots=True)
class Probe:
    card: Card
    kernels: dict[str, object]
    rows: int
    blocks: int
    failed: Pointer
    out: Pointer

    def quantise(self, x: np.ndarray) -> tuple[Pointer, Pointer]:
        q, scales = self.card.empty(self.blocks * 272), self.card.empty(self.blocks * 4)
        kernel = self.kernels["quantise_row"]
        self.card.launch(kernel, (self.blocks,), 32, self.card.put(x), q, scales)
        return q, scales

    def multiply(self, weights: Pointer, q: tuple[Pointer, Pointer], plan: Plan) -> None:
        grid = self.card.processors * plan.spread
        self.card.launch(
            self.kernels["matvec"],
            (grid,),
            32 * plan.warps,
            weights,
            *q,
            self.out,
            self.failed,
            self.rows,
            plan.stages,
            shared=shared_bytes(plan, self.blocks, self.rows, grid),
            early=plan.early,
        )


def make(card: Card, columns: int, rows: int) -> Probe:
    image = build(["q4k", "matvec", "quantise"], BLOCKS=columns // 256)
    kernels = card.kernels(image, matvec=SHARED, quantise_row=0)
    return Probe(card, kernels, rows, columns // 256, card.zeros(4), card.empty(rows * 4))


def check(probe: Probe, raw: np.ndarray, weights: Pointer, plan: Plan, rng) -> tuple[int, int]:
    x = activations(rng, CHECKED, probe.blocks * 256)
    wrong, want = 0, projected(x, raw)
    for row, expected in zip(x, want, strict=True):
        q = probe.quantise(row)
        probe.card.poison(probe.out, probe.rows * 4)
        probe.multiply(weights, q, plan)
        wrong += different(probe.card.get(probe.out, (probe.rows,), np.float32), expected)
    wrong += int(probe.card.get(probe.failed, (1,), np.uint32)[0] != 0)
    return want.size, wrong


def fits(card: Card, plan: Plan, columns: int, rows: int) -> bool:
    room = SHARED // plan.spread - (plan.spread - 1) * 1024
    return shared_bytes(plan, columns // 256, rows, card.processors * plan.spread) <= room


def timed(probe: Probe, copies: list[Pointer], q: tuple[Pointer, Pointer], plan: Plan) -> float:
    def work() -> None:
        for copy in copies:
            probe.multiply(copy, q, plan)

    return probe.card.time(work, len(copies)).median


def shape_lines(card: Card, rng: np.random.Generator, columns: int, rows: int) -> list[Line]:
    raw = matrix(rng, rows, columns)
    probe, weights = make(card, columns, rows), card.put(raw)
    copies, lines = [weights], []
    while len(copies) * raw.nbytes < STREAMED:
        copies.append(card.copy(weights, raw.nbytes))
    q = probe.quantise(activations(rng, CHECKED, columns)[2])
    for plan in PLANS:
        if not fits(card, plan, columns, rows):
            continue
        compared, wrong = check(probe, raw, weights, plan, rng) if plan is PLANS[1] else (0, 0)
        seconds = timed(probe, copies, q, plan)
        speed = raw.nbytes / seconds
        rate = f"{speed / 1e9:,.0f} GB/s, {speed / READ_ROOF:.0%} of read roof"
        case = f"{columns}→{rows} {plan.spread}×{plan.warps}×{plan.stages}"
        case += ", overlapped" if plan.early else ""
        lines.append(Line("mat-vec", case, compared, wrong, seconds, rate))
    card.release()
    return lines


def run(card: Card, rng: np.random.Generator) -> list[Line]:
    return [line for shape in SHAPES for line in shape_lines(card, rng, *shape)]
