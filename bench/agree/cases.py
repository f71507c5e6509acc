"""The three cases: greedy continuations, English loss, tiny models of other architectures.

Each takes a `Pair` and returns its part of the record: figures, bounds, and `passed`.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agree import corpus
from agree.engines import LlamaCpp, Muser, Scorer
from agree.measures import LOGIT_BOUND, LogitError, compare_losses, compare_tops
from agree.scores import Scores, score

GOLDENS = Path(__file__).parents[2] / "tests" / "goldens"
GOLDEN = GOLDENS / "smollm2_q4_1_greedy.json"
GEMMA_GOLDEN = GOLDENS / "gemma3_270m_q4_k_m_greedy.json"
TINY = ("muse-glimmer", "gemma3")
CHUNK_TOKENS = 512
SEED = 1
HEAD_SCALE = 4
TINY_PASSAGES, TINY_TOKENS = 16, 97

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """Reference and candidate; `model` is the file of the first two cases, `folder` scratch."""

    reference: LlamaCpp
    candidate: LlamaCpp | Muser
    model: Path
    folder: Path

    def open(self, path: Path) -> None:
        self.reference.open(path, CHUNK_TOKENS)
        self.candidate.open(path, CHUNK_TOKENS)


@dataclass(frozen=True, slots=True)
class Passage:
    """Token ids, and the index of the first row that counts (row i predicts `ids[i + 1]`)."""

    ids: tuple[int, ...]
    first: int = 0

    @property
    def fed(self) -> tuple[int, ...]:
        """What goes through the model: the last id is only predicted."""
        return self.ids[:-1]

    @property
    def targets(self) -> NDArray[np.int64]:
        return np.array(self.ids[self.first + 1 :], np.int64)


def greedy(pair: Pair, prompts: int) -> dict[str, Any]:
    """First choices over the recorded continuations; the logit error is told, not bounded."""
    pair.open(pair.model)
    return compare(pair.reference, pair.candidate, recorded(prompts, golden_of(pair.model)))


def golden_of(model: Path) -> Path:
    """The recording made with this very file."""
    digest = sha256(model)
    for golden in (GOLDEN, GEMMA_GOLDEN):
        if json.loads(golden.read_text(encoding="utf-8"))["model"]["sha256"] == digest:
            return golden
    raise SystemExit(f"Nothing was recorded with {model}: see bench/README.md, Recorded ids.")


def recorded(prompts: int, golden: Path = GOLDEN) -> list[Passage]:
    """The first `prompts` recorded streams; the rows that count predict the continuation."""
    entries = json.loads(golden.read_text(encoding="utf-8"))["prompts"][:prompts]
    return [
        Passage((*entry["prompt_ids"], *entry["ids"]), first=len(entry["prompt_ids"]) - 1)
        for entry in entries
    ]


def loss(pair: Pair, chunks: int, kept: Path, say: Say) -> dict[str, Any]:
    """Paired losses on English; what the reference scored is remembered in `kept`, by its
    libraries, its settings and the model, and the corpus is kept there too."""
    pair.open(pair.model)
    said = json.dumps([pair.reference.described(), sha256(pair.model)], sort_keys=True)
    scores = kept / "scores" / hashlib.sha256(said.encode()).hexdigest()[:16]
    theirs, ours = [], []
    for index, passage in enumerate(english(pair.reference, chunks, kept)):
        theirs.append(_kept_score(pair.reference, passage, scores))
        ours.append(_score(pair.candidate, passage))
        if (index + 1) % 8 == 0:
            say(f"{index + 1} of {chunks} chunks")
    found = asdict(compare_losses(theirs, ours))
    # The bounds of `greedy` are not asked of English, so its first choices are told without them.
    top = asdict(compare_tops(Scores.join(theirs), Scores.join(ours), bounds=()))
    return {"loss": found, "top_choice": top, "passed": found["passed"]}


def english(peer: LlamaCpp, chunks: int, cache: Path) -> list[Passage]:
    """The first 512 tokens of `chunks` documents spread evenly over the corpus, by llama.cpp's
    tokenizer, so that both engines score the same ids."""
    texts = list(corpus.documents(corpus.fetch(cache)))
    chosen = (texts[index * len(texts) // chunks] for index in range(chunks))
    return [Passage(tuple(peer.tokenize(text)[:CHUNK_TOKENS])) for text in chosen]


def tiny(pair: Pair, architecture: str) -> dict[str, Any]:
    """Tiny F32 files of random weights, read far beyond their window of 8.

    Logits of random weights lie close together, so only the file whose head is scaled can be
    held to the bounds on first choices.
    """
    plain = _tiny(pair, architecture, 1)
    scaled = {"head_scale": HEAD_SCALE, **_tiny(pair, architecture, HEAD_SCALE)}
    passed = plain["logit_error"]["passed"] and scaled["passed"]
    return {"logit_error": plain["logit_error"], "scaled_head": scaled, "passed": passed}


def _tiny(pair: Pair, architecture: str, head_scale: int) -> dict[str, Any]:
    from muser.models.synth import synthesise

    path = pair.folder / f"{architecture}-f32-{head_scale}.gguf"
    synthesise(path, architecture=architecture, weights="f32", seed=SEED, head_scale=head_scale)
    pair.open(path)
    passages = scattered(pair.reference.vocabulary)
    return compare(pair.reference, pair.candidate, passages, LOGIT_BOUND)


def scattered(vocabulary: int) -> list[Passage]:
    """Uniform ids: a model of random weights knows no better."""
    draw = np.random.Generator(np.random.PCG64(SEED))
    table = draw.integers(0, vocabulary, (TINY_PASSAGES, TINY_TOKENS))
    return [Passage(tuple(map(int, row))) for row in table]


def compare(
    reference: Scorer,
    candidate: Scorer,
    passages: Iterable[Passage],
    logit_bound: float | None = None,
) -> dict[str, Any]:
    """Both engines side by side, block by block: first choices and the error of the logits."""
    error, pairs = LogitError(logit_bound), []
    for passage in passages:
        blocks = zip(
            reference.logits(passage.fed, passage.first),
            candidate.logits(passage.fed, passage.first),
            strict=True,
        )
        start = 0
        for theirs, ours in blocks:
            error.add(theirs, ours)
            targets = passage.targets[start : start + len(theirs)]
            pairs.append((score(theirs, targets), score(ours, targets)))
            start += len(theirs)
    first, second = (Scores.join(list(side)) for side in zip(*pairs, strict=True))
    top, logits = asdict(compare_tops(first, second)), error.record()
    return {"top_choice": top, "logit_error": logits, "passed": top["passed"] and logits["passed"]}


def _kept_score(reference: LlamaCpp, passage: Passage, folder: Path) -> Scores:
    key = hashlib.sha256(np.array(passage.ids, np.int64).tobytes()).hexdigest()[:24]
    path = folder / f"{key}.npz"
    if path.exists():
        return Scores.load(path)
    made = _score(reference, passage)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(path)
    return made


def _score(engine: Scorer, passage: Passage) -> Scores:
    parts, start = [], 0
    for block in engine.logits(passage.fed, passage.first):
        parts.append(score(block, passage.targets[start : start + len(block)]))
        start += len(block)
    return Scores.join(parts)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
