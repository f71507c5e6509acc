"""Stages keep the tokens that llama.cpp's keep of the same row.

Random rows, in which no share falls on a threshold: there f32 and integers would part.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from muser.engine.sampling import stages
from muser.engine.sampling.candidates import Candidates
from muser.engine.sampling.history import Dry, Penalties
from muser.engine.sampling.rng import Mt19937

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from peers import llama_cpp_python

pytestmark = pytest.mark.peers
WORKER = Path(__file__).with_name("peer_worker.py")
SIZES = (2, 7, 40, 300, 1000)

THINNING: dict[str, tuple[str, list[Any], stages.Stage]] = {
    "top_k 5": ("top_k", [5], stages.TopK(5)),
    "top_p 0.9": ("top_p", [0.9, 0], stages.TopP(0.9, 0)),
    "top_p 0.3, at least 4": ("top_p", [0.3, 4], stages.TopP(0.3, 4)),
    "min_p 0.05": ("min_p", [0.05, 0], stages.MinP(0.05, 0)),
    "min_p 0.9, at least 5": ("min_p", [0.9, 5], stages.MinP(0.9, 5)),
    "typical 0.4": ("typical", [0.4, 0], stages.Typical(0.4, 0)),
    "typical 0.9, at least 3": ("typical", [0.9, 3], stages.Typical(0.9, 3)),
    "top_n_sigma 1": ("top_n_sigma", [1.0], stages.TopNSigma(1.0)),
    "temperature 0": ("temp", [0.0], stages.Temperature(0.0)),
    "temperature 0.7": ("temp", [0.7], stages.Temperature(0.7)),
}


@pytest.fixture(scope="module")
def peer() -> Path:
    try:
        return llama_cpp_python.python()
    except llama_cpp_python.PeerError as missing:
        pytest.skip(str(missing))


def ask(peer: Path, cases: list[dict[str, Any]]) -> list[list[tuple[int, float]]]:
    done = subprocess.run(
        [str(peer), str(WORKER)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
    )
    return [sorted((i, logit) for i, logit in kept) for kept in json.loads(done.stdout)]


def rows(seed: int) -> list[npt.NDArray[np.float32]]:
    words = np.random.RandomState(seed)
    sizes = [size for size in SIZES for _ in range(6)]
    # The sum of four, so that few stand out.
    each = [words.randint(0, 2**20, size=(4, n), dtype=np.uint32).sum(axis=0) for n in sizes]
    return [(word.astype(np.float32) - 2**21) / np.float32(2**17) for word in each]


def case(stage: str, arguments: list[Any], row: Any, history: Any = ()) -> dict[str, Any]:
    return {
        "stage": stage,
        "arguments": arguments,
        "logits": row.tolist(),
        "history": list(history),
    }


def ours(stage: stages.Stage, row: Any, history: Any = ()) -> list[tuple[int, float]]:
    given = Candidates(np.arange(row.size, dtype=np.int64), row, in_order=False)
    kept = stage(given, history)
    return sorted(zip(kept.ids.tolist(), kept.logits.tolist(), strict=True))


@pytest.mark.parametrize("name", THINNING)
def test_what_is_left_of_a_row(name: str, peer: Path) -> None:
    stage, arguments, act = THINNING[name]
    some = rows(1)
    theirs = ask(peer, [case(stage, arguments, row) for row in some])
    assert [ours(act, row) for row in some] == theirs


@pytest.mark.parametrize(("probability", "threshold", "least"), [(1.0, 0.1, 0), (0.5, 0.02, 2)])
def test_xtc_drops_the_same_tokens_by_the_same_draws(
    probability: float, threshold: float, least: int, peer: Path
) -> None:
    cases, kept = [], []
    for seed, row in enumerate(rows(2)):
        cases.append(case("xtc", [probability, threshold, least, seed], row))
        kept.append(ours(stages.Xtc(probability, threshold, least, Mt19937(seed)), row))
    assert kept == ask(peer, cases)
    assert len({len(some) for some in kept}) > 1


def test_penalties_give_the_same_logits(peer: Path) -> None:
    some = rows(3)
    history = [1, 0, 1, 1, 6, 3, 1, 0, 5, 5, 1]
    cases = [
        case("penalties", [row.size, last_n, 1.25, frequency, presence], row, history)
        for row in some
        for last_n, frequency, presence in [(64, 0.0, 0.0), (4, 0.5, 0.25), (64, -0.5, 1.0)]
    ]
    acts = [Penalties(*(c["arguments"][i] for i in (1, 2, 4, 3))) for c in cases]
    given = [np.array(c["logits"], dtype=np.float32) for c in cases]
    kept = [ours(act, row, history) for act, row in zip(acts, given, strict=True)]
    assert kept == ask(peer, cases)


def test_dry_lowers_the_same_tokens(peer: Path) -> None:
    words = np.random.RandomState(4)
    cases, kept = [], []
    for row in rows(4):
        history = words.randint(0, 2 + row.size % 3, size=30).tolist()
        # Powers of two are the same in pow as in products.
        cases.append(case("dry", [None, 0.5, 2.0, 2, 20, None, 0], row, history))
        kept.append(ours(Dry(0.5, 2.0, 2, 20, {}), row, history))
    assert kept == ask(peer, cases)
