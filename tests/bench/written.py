"""Records as they could have been written, with figures that are easy to check by head."""

from muser.bench.record import SCHEMA

MACHINE = {
    "processor": "Test | CPU",
    "family": "6/1/2",
    "cores": 2,
    "cache": "32768 KB",
    "virtual": True,
    "memory_bytes": 16_000_000_000,
    "system": "Linux 6",
}
MODEL = {"file": "tiny.gguf", "bytes": 1_000_000, "sha256": "ab" * 32}
OURS = {
    "name": "muser",
    "engine": "muser",
    "version": "0.1.0",
    "build": {"compiler": "cc 12"},
    "instruction_sets": ["cpu-avx2"],
    "libraries": {"cpu-avx2": "cd" * 32},
}
THEIRS = {
    "name": "llama.cpp by clang",
    "engine": "llama.cpp",
    "version": "b1",
    "build": "clang 19",
    "instruction_sets": "AVX2 = 1 | AMX_INT8 = 1",
    "libraries": {"libllama.so": "ef" * 32},
}


def record(kind, at, runs, *, quiet=True, **more):
    look = {"seconds": 2.0, "others": 0.0 if quiet else 0.5, "stolen": 0.0, "load": 0.1}
    return {
        "schema": SCHEMA,
        "kind": kind,
        "at": at,
        "machine": MACHINE,
        "model": MODEL,
        "quiet": quiet,
        "noise": dict.fromkeys(("after", "before", "during"), look),
        "runs": runs,
        **more,
    }


def times(median_ms, cv=0.01):
    median = median_ms * 1_000_000
    return {
        "ns": [median] * 3,
        "median_ns": median,
        "least_ns": median // 2,
        "most_ns": median * 2,
        "cv": cv,
    }


def side(median_ms, timed, cv=0.01):
    found = times(median_ms, cv)
    return {**found, "tokens_per_second": timed / found["median_ns"] * 1e9, "ids_sha256": ["0"]}


def cell(surface, ours_ms, theirs_ms=None, *, each=(), bars=(), exact=True, cv=0.01):
    found = {"surface": surface, "depth": 0, "tokens": 64, "slots": 1, "bars": list(bars)}
    found["ours"] = side(ours_ms, 64, cv)
    if theirs_ms is None:
        return found
    agreement = {"exact": exact, "choices": 64, "repeats_itself": True}
    agreement |= {
        "differences": 0 if exact else 2,
        "first_difference": None if exact else 17,
        "our_margin": None if exact else 0.03125,
        "their_margin": None if exact else 0.0625,
    }
    ratios = {"of_medians": theirs_ms / ours_ms, "each": list(each), "least": min(each)}
    return {**found, "theirs": side(theirs_ms, 64), "agreement": agreement, "ratios": ratios}


def memory(rss):
    return {"rss": rss * 10**6, "anonymous": 10**6, "file": (rss - 1) * 10**6, "peak": rss * 10**6}


VERSUS = record(
    "vs",
    "2026-01-31T12:00:00Z",
    [
        {
            "threads": 2,
            "slots": 1,
            "sides": {"ours": OURS, "theirs": THEIRS},
            "cells": [
                cell("decode", 200, 250, each=[1.25, 1.3, 0.99], bars=[1.2, 1.4]),
                cell("prefill", 100, 90, each=[0.9, 0.9, 0.9], bars=[1.1], exact=False),
            ],
        }
    ],
)
NOISY = record(
    "decode",
    "2026-02-01T12:00:00Z",
    [{"threads": 1, "slots": 1, "sides": {"ours": OURS}, "cells": [cell("decode", 400, cv=0.2)]}],
    quiet=False,
)
START = record(
    "start",
    "2026-02-02T12:00:00Z",
    [{"sides": {"ours": OURS}, "cold": times(9000), "warm": times(600)}],
)
LOAD = record(
    "load",
    "2026-02-03T12:00:00Z",
    [
        {
            "threads": 2,
            "sides": {"ours": OURS},
            "loads": {
                "ours": {
                    **times(50),
                    "first_token": times(5),
                    "memory": {"before": memory(30), "after": memory(90), "used": memory(120)},
                }
            },
        }
    ],
)
STEP = {
    "depth": 0,
    "rows": 1,
    "ordinary_ns": 990_000,
    "wall_ns": 1_000_000.0,
    "kernels_ns": 900_000.0,
    "wake_ns": 20_000.0,
    "uneven_ns": 50_000.0,
    "barriers_ns": 30_000.0,
    "entries": {
        "labels": ["project[x]", "add[x]"],
        "label": [0, 1, 0],
        "node": ["a", "b", "c"],
        "ns": [500_000.0, 100_000.0, 300_000.0],
        "gap_ns": [0.0, 0.0, 0.0],
        "bytes": [10_000_000, 0, 6_000_000],
        "operations": [20_000_000, 0, 12_000_000],
    },
}
KERNELS = record(
    "kernels",
    "2026-02-04T12:00:00Z",
    [
        {
            "threads": 2,
            "sides": {"ours": OURS},
            "roof": {"bytes": 16_000_000, "gigabytes_per_second": 25.0},
            "steps": [STEP],
        }
    ],
)
CARD = {
    "name": "NVIDIA Test",
    "capability": "9.0",
    "processors": 132,
    "memory_bytes": 150_000_000_000,
    "driver": "CUDA 13.0, 580.1.2",
    "compiler": "NVRTC 13.0",
    "kernel_texts_sha256": "12" * 32,
}
ON_CARD = {
    **OURS,
    "instruction_sets": ["cuda-sm_90a"],
    "libraries": {"cuda-sm_90a": "ee" * 32},
    "settings": {"device": "cuda", "card": CARD},
}
CARD_STEP = {
    "depth": 0,
    "rows": 4,
    "slots": 4,
    "ordinary_ns": 1_100_000,
    "wall_ns": 1_000_000.0,
    "kernels_ns": 900_000.0,
    "starts_ns": 300_000.0,
    "copies_ns": 50_000.0,
    "overlapped_ns": -250_000.0,
    "stamp_ns": 1_000.0,
    "entries": {
        "labels": ["matvec[x] attn_q", "heads[x]"],
        "label": [0, 1, 0],
        "node": ["a", "b", "c"],
        "ns": [500_000.0, 100_000.0, 300_000.0],
        "bytes": [1_000_000_000, 0, 600_000_000],
        "operations": [8_000_000_000, 0, 4_800_000_000],
    },
}
CARD_KERNELS = record(
    "kernels",
    "2026-02-06T12:00:00Z",
    [
        {
            "sides": {"ours": ON_CARD},
            "roof": {"bytes": 4_000_000_000, "gigabytes_per_second": 4000.0},
            "steps": [CARD_STEP],
        }
    ],
)
CARD_DECODE = record(
    "decode",
    "2026-02-07T12:00:00Z",
    [
        {
            "threads": 16,
            "slots": 1,
            "sides": {"ours": {**ON_CARD, "settings": {**ON_CARD["settings"], "context": 65}}},
            "cells": [cell("decode", 300)],
        },
        {
            "threads": 16,
            "slots": 1,
            "sides": {"ours": {**ON_CARD, "settings": {"device": "cuda"}}},  # as of older records
            "cells": [cell("decode", 300)],
        },
    ],
)
FAILED = record(
    "decode",
    "2026-02-05T12:00:00Z",
    [],
    failed={
        "code": "wrong_tokens",
        "sentence": "decode 128 at depth 0: choice 7 is 1, the reference chose 2.",
        "remedy": "Report it.",
        "sides": {"ours": {**OURS, "libraries": {"cpu-amx": "aa" * 32}}},
    },
)
ALL = (KERNELS, VERSUS, NOISY, START, LOAD, FAILED, CARD_KERNELS, CARD_DECODE)
