"""On a machine with a CUDA card: build, check against the CPU device, time.

    python bench/gpu.py [--cases models,slots,twins,census] [--twins FILE ...] [--census FILE]

Prints one line a check; logits hashes are to be compared with those of another machine (`--device
cpu` prints the same lines there). Exits with 1 if a word differs.
"""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np

from muser.bench.breakdown import block
from muser.bench.identity import first_card
from muser.bench.launches import ROOF_PLAYS, roof_bytes, timed_step
from muser.bench.pace import batch_times, decode_times, prefill_times
from muser.bench.steps import roof_of
from muser.devices import Limits, open_device
from muser.devices.cuda import attending
from muser.devices.feeding import logits_of, side_by_side, stretch
from muser.formats import GgufFile
from muser.models import build
from muser.models.synth import TINY, make_tiny
from muser.weights import Weights

LENGTH = 300
CUTS = ([1], [2, 3, 1], [5, 16, 17], [64], [128], [100, 1, 1, 33], [7], [16])
DECODED, BATCHED, PLAYS = 48, 24, 12  # steps that are timed, and plays of one in full


def sha(rows):
    return hashlib.sha256(np.ascontiguousarray(rows, "<f4").tobytes()).hexdigest()[:16]


def tiny(folder) -> Iterator[tuple[str, Path]]:
    for architecture, kind in TINY:
        path = Path(folder) / f"{architecture}-{kind}.gguf"
        make_tiny(path, architecture, kind)
        yield path.stem, path
    for dim in attending.DEEP_SIZES:
        path = Path(folder) / f"llama-heads-of-{dim}.gguf"
        make_tiny(path, "llama", "q8_0", heads=8, kv_heads=2, head_dim=dim)
        yield path.stem, path


def loaded(name, path, limits):
    file = GgufFile.open(path)
    graph = build(file.metadata, file.tensors)
    device = open_device(name)
    weights = Weights(file, graph, looks=device.looks)
    return weights, device.load(graph, weights, limits)


def check_models(devices, models, repeats, length=LENGTH, chunk=128):
    """Every cut on every device against the first cut of the first; how many words differ."""
    wrong = 0
    for name, path in models:
        expected = None
        for device in devices:
            weights, runner = loaded(device, path, Limits(length, 1, chunk))
            ids = np.random.default_rng(2).integers(
                0, weights.graph.vocabulary, length, dtype=np.int32
            )
            for cuts in CUTS if device != "cpu" else ([64],):
                for _ in range(repeats if cuts == [16] and device != "cpu" else 1):
                    got = logits_of(runner, ids, cuts)
                    expected = got if expected is None else expected
                    bad = int((got.view(np.uint32) != expected.view(np.uint32)).sum())
                    wrong += bad
                    if bad:
                        print(f"DIFFERS {name} {device} {cuts}: {bad} of {got.size}", flush=True)
            runner.close()
        print(f"{name:24} {' '.join(devices)} logits {sha(expected)}", flush=True)
    return wrong


def check_slots(device, models):
    """Sixteen sequences side by side, steps of 1 to 16 rows, against each alone."""
    wrong = 0
    for name, path in models:
        weights, runner = loaded(device, path, Limits(64, 16, 64))
        rng = np.random.default_rng(5)
        texts = rng.integers(0, weights.graph.vocabulary, (16, 24), dtype=np.int32)
        bad = 0
        alone = [logits_of(runner, text, [24], slot) for slot, text in enumerate(texts)]
        for count in (1, 2, 4, 5, 8, 15, 16):
            for position in range(24):
                got = runner.forward(side_by_side(texts[:count, position], position))
                want = np.stack([alone[slot][position] for slot in range(count)])
                bad += int((got.view(np.uint32) != want.view(np.uint32)).sum())
        runner.close()
        wrong += bad
        print(f"{name:24} {device} batches of 1 to 16: {bad} words differ", flush=True)
    return wrong


def time_census(path, depths, chunk):
    """Speeds by the clock, and where the time of four kinds of steps goes."""
    start = perf_counter()
    context = max(depths) + 256 + chunk
    weights, runner = loaded("cuda", path, Limits(context, 16, chunk))
    print(f"load {perf_counter() - start:.2f} s; memory {dict(runner.memory)}", flush=True)
    text = np.random.default_rng(1).integers(0, runner.vocabulary, context, dtype=np.int32)
    filled = 0
    for depth in sorted(depths):
        for at, count, ns in prefill_times(runner, text[filled:depth], filled):
            print(f"prefill {count} at {at}: {shown(ns, count)}", flush=True)
        filled = depth
        took = decode_times(runner, text[:DECODED], depth)
        print(f"decode at {depth}: {shown(took.median, 1)}", flush=True)
    steps = [stretch(text[:1], filled, 0, [0])]
    for rows in (2, 4, 8, 16):
        took = batch_times(runner, text, rows, BATCHED)
        print(f"batch {rows}: {shown(took.median, rows)} together", flush=True)
    size = min(chunk, 2048)
    steps += [side_by_side(text[:16], BATCHED), stretch(text[:size], 0, 0, [size - 1])]
    show(runner, weights, steps)
    runner.close()


def shown(ns, tokens):
    return f"{ns / 1e6:.3f} ms, {tokens / ns * 1e9:.1f} tok/s"


def show(runner, weights, steps):
    """Where each step's time goes, as `muser bench kernels --device cuda` tells it."""
    size = roof_bytes(runner, weights)
    roof = roof_of(size, [round(ns) for ns in runner.reading_times(size, ROOF_PLAYS)])
    print(f"roof {roof['gigabytes_per_second']:.1f} GB/s, reading {size / 1e6:.0f} MB")
    for step in steps:
        slots = len(np.unique(step.slots))
        found = timed_step(runner, weights, step, PLAYS)
        told = {"depth": int(step.positions[0]), "rows": len(step.tokens), "slots": slots}
        run = {"roof": roof, "sides": {"ours": {"settings": {"card": first_card()}}}}
        print("\n".join(("", *block(run, {**told, **found}))), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default="models,slots")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--twins", nargs="*", type=Path, default=[])
    parser.add_argument("--census", type=Path)
    parser.add_argument("--depths", default="0,8192")
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    cases, wrong = chosen.cases.split(","), 0
    if unknown := [*{*cases} - {"models", "slots", "twins", "census"}]:
        parser.error(f"there is no case {unknown[0]!r}; the cases are models, slots, twins, census")
    if "twins" in cases and not chosen.twins:
        parser.error("the case twins needs --twins FILE ... (muser model synth --like writes them)")
    if "census" in cases and not chosen.census:
        parser.error("the case census needs --census FILE (muser model synth writes one)")
    devices = ["cpu"] if chosen.device == "cpu" else ["cpu", chosen.device]
    with tempfile.TemporaryDirectory() as folder:
        models = list(tiny(folder))
        # With each kernel that walks the chain over tiles: as few as these have, more, any number.
        # And one row's tiles as of few, and as of many.
        few, more, most = attending.FEW_TILES, attending.MORE_TILES, attending.MOST_TILES
        deep = attending.DEEP_TILES
        chains = ((0, 0, 0, 0), (0, 0, most, deep), (0, more, most, 0), (few, more, most, deep))
        for chain in chains:  # the last is timed
            attending.FEW_TILES, attending.MORE_TILES, attending.MOST_TILES = chain[:3]
            attending.DEEP_TILES = chain[3]
            if "models" in cases:
                wrong += check_models(devices, models, chosen.repeats)
            if "slots" in cases:
                wrong += check_slots(chosen.device, models)
            if "twins" in cases:
                twins = [(path.stem, path) for path in chosen.twins]
                wrong += check_models(devices, twins, 1, 256)
        if "census" in cases:
            time_census(chosen.census, list(map(int, chosen.depths.split(","))), chosen.chunk)
    print(f"{wrong} words differ")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
