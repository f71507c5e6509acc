"""The engine's own chunk projections on a card: every output compared, then timed.

    PYTHONPATH=src python bench/probes/projections.py [rows] [--free]

Warpgroup kernels against the `mma.sync` ones in every output, samples against the oracle; then one
layer of the 30B model at `rows` rows (2,048). `--free` leaves out the turns of the warpgroups.
"""

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from card import FLAGS, Card, Pointer, call
from cuda.bindings import driver, nvrtc

import muser
from muser.formats import BlockType
from muser.graph import oracle
from muser.graph.ops import Activation

TEXTS = f"{muser.__path__[0]}/kernels/cuda"
NO_FAULT = 2**64 - 1
FLOP_A_TOKEN = 54.3e9
TILE_BYTES = 37376
FORMATS = (BlockType.Q4_K, BlockType.Q5_K, BlockType.Q6_K)
GROUP_BYTES = (144, 176, 208)
STAGES = {"gemm_q4_k": 37120, "gemm_q5_k": 41216, "gemm_q6_k": 45312}
TURNS = ("named_sync(1 + group, WIDE_THREADS);", "named_arrive(2 - group, WIDE_THREADS);")

ADDRESS, WORD = ctypes.c_void_p, ctypes.c_int


class TileRows(ctypes.Structure):
    _fields_ = [("x", ADDRESS), ("tiles", ADDRESS), ("count", ADDRESS), ("width", WORD)]
    _fields_ += [("groups", WORD)]


class Part(ctypes.Structure):
    _fields_ = [("weights", ADDRESS), ("scales", ADDRESS), ("out", ADDRESS)]
    _fields_ += [("entry", ctypes.c_uint64), ("outputs", WORD), ("format", WORD)]


class ChunkGemm(ctypes.Structure):
    _fields_ = [("part", Part * 4), ("tiles", ADDRESS), ("count", ADDRESS), ("faults", ADDRESS)]
    _fields_ += [("parts", WORD), ("groups", WORD)]


class WideGemm(ctypes.Structure):
    _fields_ = [("map", ctypes.c_uint8 * 512), ("part", Part * 4), ("tiles", ADDRESS)]
    _fields_ += [(name, ADDRESS) for name in ("count", "faults", "carry", "flags")]
    _fields_ += [("entry", ctypes.c_uint64)]
    _fields_ += [(name, WORD) for name in ("parts", "groups", "stages", "stage_bytes", "gated")]
    _fields_ += [("spare", WORD * 7)]


class Argument:
    """A struct as `Card.launch` takes it."""

    def __init__(self, struct: ctypes.Structure) -> None:
        self._struct = struct

    def getPtr(self) -> int:  # noqa: N802
        return ctypes.addressof(self._struct)


def build(free: bool) -> bytes:
    texts = ("muser.cuh", "tiles.cuh", "tile_rows.cuh", "gemm.cuh", "gemm90.cuh")
    parts = [Path(TEXTS, name).read_text() for name in texts]
    if free:
        for turn in TURNS:
            assert turn in parts[3]
            parts[3] = parts[3].replace(turn, "")
    text = "\n".join(parts).encode()
    program = call(nvrtc.nvrtcCreateProgram(text, b"chunk.cu", 0, [], []))
    flags = ["--gpu-architecture=sm_90a", f"--include-path={TEXTS}", *FLAGS]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    if int(code):
        log = b" " * (call(nvrtc.nvrtcGetProgramLogSize(program)) + 1)
        call(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    image = b" " * call(nvrtc.nvrtcGetCUBINSize(program))
    call(nvrtc.nvrtcGetCUBIN(program, image))
    return image


@dataclass
class Weight:
    kind: BlockType
    raw: np.ndarray  # as in a file
    codes: Pointer
    scales: Pointer
    groups: int

    @property
    def format(self) -> int:
        return FORMATS.index(self.kind)


def random_weight(card: Card, rng, kind: BlockType, outputs: int, width: int) -> Weight:
    groups = width // 256
    raw = np.frombuffer(rng.bytes(outputs * groups * kind.bytes), np.uint8)
    raw = raw.reshape(outputs, groups, kind.bytes).copy()
    for at in (208,) if kind is BlockType.Q6_K else (0, 2):
        scale = rng.uniform(2.0**-16, 2.0**-8, (outputs, groups)).astype(np.float16)
        raw[:, :, at : at + 2] = scale.view(np.uint8).reshape(outputs, groups, 2)
    placed, scales = raw, Pointer(0)
    if kind is BlockType.Q6_K:
        placed = np.concatenate([raw[..., 192:208], raw[..., :192]], axis=2)
        scales = card.put(np.ascontiguousarray(raw[..., 208:]))
    return Weight(kind, raw.reshape(outputs, -1), card.put(placed), scales, groups)


def box_map(weight: Weight) -> bytes:
    wide, narrow, kinds = driver.cuuint64_t, driver.cuuint32_t, driver.CUtensorMapDataType
    size, rows = GROUP_BYTES[weight.format], len(weight.raw)
    made = call(
        driver.cuTensorMapEncodeTiled(
            kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
            2,
            int(weight.codes),
            [wide(weight.groups * size), wide(rows)],
            [wide(weight.groups * size)],
            [narrow(size), narrow(64)],
            [narrow(1), narrow(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(int(made.getPtr()), 128)


class Bench:
    def __init__(self, rows: int, free: bool) -> None:
        self.card, self.rows = Card(), rows
        shared = {name: 2 * stage for name, stage in STAGES.items()}
        names = dict.fromkeys(("gemm_wide", "gemm_gated"), 4 * 56320 + 1024)
        self.kernels = self.card.kernels(build(free), quantise_tiles_k=0, **shared, **names)
        self.count = self.card.put(np.array([rows], np.int32))
        self.faults = self.card.put(np.array([NO_FAULT], np.uint64))
        grid = self.card.processors
        self.carry, self.flags = self.card.empty(grid * 65536), self.card.zeros(grid * 4)

    def tiles(self, x: np.ndarray) -> tuple[Pointer, int]:
        groups, room = x.shape[1] // 256, -(-len(x) // 128)
        tiles = self.card.empty(room * groups * TILE_BYTES)
        rows = TileRows(self.card.put(x), tiles, self.count, x.shape[1], groups)
        grid = (groups, room * 16)
        self.card.launch(self.kernels["quantise_tiles_k"], grid, 256, Argument(rows))
        seconds = self.card.time(
            lambda: self.card.launch(self.kernels["quantise_tiles_k"], grid, 256, Argument(rows)), 1
        )
        print(f"quantise {len(x)}×{x.shape[1]}: {seconds.median * 1e6:.1f} µs")
        return tiles, groups

    def plain(self, tiles: Pointer, weight: Weight) -> Pointer:
        outputs = len(weight.raw)
        out, name = self.card.empty(self.rows * outputs * 4), f"gemm_{weight.kind.name.lower()}"
        argument = ChunkGemm(parts=1, groups=weight.groups)
        argument.tiles, argument.count, argument.faults = tiles, self.count, self.faults
        argument.part[0] = Part(weight.codes, weight.scales, out, 7, outputs, 0)
        grid = (2 * -(-self.rows // 128), -(-outputs // 128))

        def work() -> None:
            kernel = self.kernels[name]
            self.card.launch(kernel, grid, 256, Argument(argument), shared=2 * STAGES[name])

        work()
        seconds = self.card.time(work, 1).median
        print(f"  {name}: {2e-12 * self.rows * weight.groups * 256 * outputs / seconds:.0f} TOP/s")
        return out

    def wide(self, tiles: Pointer, weights: list[Weight], gated: int = 0):
        """Outputs of each part, and the work that makes them."""
        outs = [self.card.empty(self.rows * len(w.raw) * 4) for w in weights]
        argument = WideGemm(parts=len(outs), groups=weights[0].groups, gated=gated, entry=99)
        for i, (weight, out) in enumerate(zip(weights, outs, strict=True)):
            outputs = len(weight.raw)
            part = Part(weight.codes, weight.scales, out, i + 7, outputs, weight.format)
            argument.part[i] = part
            ctypes.memmove(ctypes.byref(argument, 128 * i), box_map(weight), 128)
        largest = max(GROUP_BYTES[w.format] for w in weights)
        argument.stage_bytes = -(-(TILE_BYTES + 128 * largest) // 1024) * 1024
        argument.stages = 4 if largest == 144 else 3
        argument.tiles, argument.count, argument.faults = tiles, self.count, self.faults
        argument.carry, argument.flags = self.carry, self.flags
        shared = argument.stages * argument.stage_bytes + 1024
        kernel, grid = self.kernels["gemm_gated" if gated else "gemm_wide"], (self.card.processors,)

        def work() -> None:
            self.card.launch(kernel, grid, 384, Argument(argument), shared=shared)

        work()
        return outs, work

    def got(self, out: Pointer, outputs: int) -> np.ndarray:
        return self.card.get(out, (self.rows, outputs), np.float32)


def different(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.count_nonzero(a.view(np.uint32) != b.view(np.uint32)))


def layer(bench: Bench, rng, width: int, parts, gated: int = 0) -> tuple[int, float, float]:
    """Words that differ, seconds and operations of one launch."""
    x = rng.standard_normal((bench.rows, width), np.float32)
    x[0], x[1, :256] = 1.5, 0
    weights = [random_weight(bench.card, rng, kind, outputs, width) for kind, outputs in parts]
    tiles, _ = bench.tiles(x)
    outs, work = bench.wide(tiles, weights, gated)
    plain = [bench.got(bench.plain(tiles, w), len(w.raw)) for w in weights]
    sample = np.r_[0:3, rng.choice(bench.rows, 5, replace=False)]
    columns = np.r_[0, len(weights[0].raw) - 1, rng.choice(len(weights[0].raw), 62)]
    want = [oracle.project(x[sample], w.kind, w.raw[columns % len(w.raw)]) for w in weights]
    wrong = 0
    for w, one, some in zip(weights, plain, want, strict=True):
        wrong += different(one[np.ix_(sample, columns % len(w.raw))], some)
    if gated:
        act = oracle.gated_act(*(one[:64] for one in plain), Activation.SILU)
        wrong += different(bench.got(outs[0], len(weights[0].raw))[:64], act)
    else:
        for w, one, out in zip(weights, plain, outs, strict=True):
            wrong += different(bench.got(out, len(w.raw)), one)
    wrong += int(bench.card.get(bench.faults, (1,), np.uint64)[0] != NO_FAULT)
    wrong += int(bench.card.get(bench.flags, (bench.card.processors,), np.uint32).any())
    seconds = bench.card.time(work, 1).median
    return wrong, seconds, 2.0 * bench.rows * width * sum(count for _, count in parts)


def main() -> int:
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    bench = Bench(numbers[0] if numbers else 2048, "--free" in sys.argv)
    rng = np.random.default_rng()
    q4, q5, q6 = FORMATS
    launches = [
        ("q, k, v and gate", 6656, [(q4, 4096), (q4, 256), (q6, 256), (q4, 4096)], 0),
        ("output", 4096, [(q4, 6656)], 0),
        ("gate and up", 6656, [(q4, 19968), (q4, 19968)], 0),
        ("gate and up, gated", 6656, [(q4, 19968), (q4, 19968)], 1),
        ("down", 19968, [(q4, 6656)], 0),
        ("down, Q6_K", 19968, [(q6, 6656)], 0),
        ("Q5_K", 6656, [(q5, 6656)], 0),
    ]
    failed, total = 0, [0.0, 0.0]
    for at, (name, width, parts, gated) in enumerate(launches):
        wrong, seconds, operations = layer(bench, rng, width, parts, gated)
        failed += wrong
        rate = operations / seconds / 1e12
        print(f"{name}: {wrong} differ, {seconds * 1e6:.1f} µs, {rate:.0f} TOP/s")
        if at in (0, 1, 2, 4):
            total = [total[0] + seconds, total[1] + operations]
    print(f"a layer: {total[1] / total[0] / FLOP_A_TOKEN:,.0f} tok/s of {FLOP_A_TOKEN / 1e9} GFLOP")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
