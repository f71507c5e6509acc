"""On a machine with a CUDA card: build, check against the CPU device, time.

    python bench/gpu.py [--cases models,slots,twins,census] [--twins FILE ...] [--census FILE]

Prints one line a check; logits hashes are to be compared with those of another machine (`--device
cpu` prints the same lines there). Exits with 1 if a word differs.
"""

import argparse
import hashlib
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from muser.devices import Limits, Step, open_device
from muser.formats import GgufFile
from muser.models import build
from muser.models.synth import synthesise
from muser.weights import Weights

LENGTH = 300
SMALL = {
    "layers": 8, "width": 256, "ffn": 768, "heads": 16, "kv_heads": 2, "head_dim": 32,
    "vocabulary": 320, "window": 8, "context": 1024,
}  # fmt: skip
MODELS = [
    *(("llama", kind) for kind in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "f16", "bf16", "f32")),
    ("muse-glimmer", "census"),
    ("muse-glimmer", "f32"),
    ("gemma3", "census"),
    ("gemma3", "f32"),
]
CUTS = ([1], [2, 3, 1], [5, 16, 17], [64], [128], [100, 1, 1, 33], [7], [16])
READ_ROOF = 4341e9  # bytes a second, read, of an H200


def run(runner, ids, cuts, slot=0):
    """Logits of every position, the sequence cut into steps of `cuts` rows, repeated."""
    rows, start = [], 0
    while start < len(ids):
        for size in cuts:
            part = ids[start : start + size]
            if len(part):
                positions = np.arange(start, start + len(part), dtype=np.int32)
                slots = np.full(len(part), slot, np.int32)
                every = np.arange(len(part), dtype=np.int32)
                rows.append(runner.forward(Step(part, positions, slots, every)))
            start += len(part)
    return np.concatenate(rows)


def sha(rows):
    return hashlib.sha256(np.ascontiguousarray(rows, "<f4").tobytes()).hexdigest()[:16]


def tiny(folder) -> Iterator[tuple[str, Path]]:
    for architecture, kind in MODELS:
        path = Path(folder) / f"{architecture}-{kind}.gguf"
        sizes = SMALL if kind == "census" else {}
        if sizes and architecture == "gemma3":
            sizes = {**SMALL, "layers": 7, "heads": 4, "kv_heads": 1, "head_dim": 256}
        synthesise(path, architecture=architecture, weights=kind, seed=11, **sizes)
        yield path.stem, path


def loaded(name, path, limits):
    file = GgufFile.open(path)
    graph = build(file.metadata, file.tensors)
    device = open_device(name)
    return graph, device.load(graph, Weights(file, graph, looks=device.looks), limits)


def check_models(devices, models, repeats, length=LENGTH, chunk=128):
    """Every cut on every device against the first cut of the first; how many words differ."""
    wrong = 0
    for name, path in models:
        expected = None
        for device in devices:
            graph, runner = loaded(device, path, Limits(length, 1, chunk))
            ids = np.random.default_rng(2).integers(0, graph.vocabulary, length, dtype=np.int32)
            for cuts in CUTS if device != "cpu" else ([64],):
                for _ in range(repeats if cuts == [16] and device != "cpu" else 1):
                    got = run(runner, ids, cuts)
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
        graph, runner = loaded(device, path, Limits(64, 16, 64))
        rng = np.random.default_rng(5)
        texts = rng.integers(0, graph.vocabulary, (16, 24), dtype=np.int32)
        bad = 0
        alone = [run(runner, text, [24], slot) for slot, text in enumerate(texts)]
        for count in (1, 2, 4, 5, 8, 15, 16):
            slots = np.arange(count, dtype=np.int32)
            for position in range(24):
                at = np.full(count, position, np.int32)
                step = Step(texts[:count, position].copy(), at, slots, slots)
                got = runner.forward(step)
                want = np.stack([alone[slot][position] for slot in range(count)])
                bad += int((got.view(np.uint32) != want.view(np.uint32)).sum())
        runner.close()
        wrong += bad
        print(f"{name:24} {device} batches of 1 to 16: {bad} words differ", flush=True)
    return wrong


def time_census(path, depths, chunk, steps=48):
    start = perf_counter()
    context = max(depths) + 256 + chunk
    graph, runner = loaded("cuda", path, Limits(context, 16, chunk))
    print(f"load {perf_counter() - start:.2f} s; memory {dict(runner.memory)}", flush=True)
    rng = np.random.default_rng(1)
    text = rng.integers(0, graph.vocabulary, context, dtype=np.int32)
    zero, at = np.zeros(1, np.int32), 0
    for depth in depths:
        while at < depth:
            count = min(chunk, depth - at)
            begin = perf_counter()
            positions = np.arange(at, at + count, dtype=np.int32)
            step = Step(text[at : at + count], positions, np.zeros(count, np.int32), zero[:0])
            runner.forward(step)
            took = perf_counter() - begin
            print(
                f"prefill {count} at {at}: {took * 1e3:.1f} ms, {count / took:.0f} tok/s",
                flush=True,
            )
            at += count
        times = []
        for i in range(steps):
            begin = perf_counter()
            runner.choose(Step(text[i : i + 1], np.array([depth + i], np.int32), zero, zero))
            times.append(perf_counter() - begin)
        took = median(times[4:])
        print(f"decode at {depth}: {took * 1e3:.3f} ms, {1 / took:.1f} tok/s", flush=True)
    show(runner, Step(text[:1], np.array([max(depths)], np.int32), zero, zero))
    for rows in (2, 4, 8, 16):
        slots = np.arange(rows, dtype=np.int32)
        times = []
        for i in range(24):
            at = np.full(rows, i, np.int32)
            begin = perf_counter()
            runner.choose(Step(text[i : i + rows], at, slots, slots))
            times.append(perf_counter() - begin)
        took = median(times[4:])
        print(f"batch {rows}: {took * 1e3:.3f} ms, {rows / took:.0f} tok/s together", flush=True)
    sixteen = np.arange(16, dtype=np.int32)
    show(runner, Step(text[:16], np.full(16, 30, np.int32), sixteen, sixteen))
    count = min(chunk, 2048)
    positions = np.arange(count, dtype=np.int32)
    show(runner, Step(text[:count], positions, np.zeros(count, np.int32), zero + count - 1))
    runner.close()


def show(runner, step):
    """Where a step's time goes, by label."""
    totals = defaultdict(lambda: [0, 0.0])
    for _ in range(3):
        found = runner.timed(step)
    for launch, ns in found:
        shape = launch.tensors[0].split(".", 2)[-1] if launch.tensors else ""
        total = totals[f"{launch.label.split('[')[0]} {shape}"]
        total[0] += 1
        total[1] += ns / 1e3
    alone = sum(ns for _, ns in found) / 1e6
    print(f"--- {len(step.tokens)} rows: {len(found)} launches, alone {alone:.3f} ms")
    for name, (count, us) in sorted(totals.items(), key=lambda item: -item[1][1]):
        print(f"{name:44} {count:5} × {us / count:9.2f} us = {us / 1e3:8.3f} ms", flush=True)


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
