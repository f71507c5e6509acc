"""Sides that count, a clock that is set by hand, a machine whose noise is written down."""

from datetime import UTC, datetime

from muser.bench import Loading, Memory, Sample
from muser.bench.look import Look
from muser.bench.quiet import Reading

NOTHING = Memory(0, 0, 0, 0)


class CountingSide:
    """Chooses the sum of all it has seen; takes `ns` of them for each of its samples.

    `wrong` is the number of the sample (1 is the warm-up) whose last choice is off by one.
    """

    def __init__(self, name="ours", ns=(1000,), wrong=None, always_off=False, calls=None):
        self.name, self.times, self.wrong, self.always_off = name, list(ns), wrong, always_off
        self.calls = [] if calls is None else calls
        self.samples = 0
        self.closed = False
        self.loads = []

    def identity(self):
        return {"engine": self.name, "libraries": {self.name: "00"}, "build": "x", "settings": {}}

    def load(self, model, *, threads, context, slots=1):
        self.loads.append((model, threads, context, slots))
        return Loading(5, NOTHING, Memory(10, 4, 6, 12))

    def decode(self, prompts, fed, *, margins=False):
        ids, digests = [], []
        for prompt, tokens in zip(prompts, fed, strict=True):
            total = sum(prompt)
            for token in tokens:
                total += token
                ids.append(total)
            digests.append(f"logits {total}")
        return self._sample(ids, digests, margins)

    def prefill(self, ids, *, margins=False):
        return self._sample([sum(ids)], [f"logits {sum(ids)}"], margins)

    def greedy(self, prompt, count):
        ids, total = [], sum(prompt)
        for _ in range(count):
            ids.append(total)
            total += ids[-1]
        return tuple(ids), f"logits {ids[-1]}"

    def memory(self):
        return NOTHING

    def close(self):
        self.closed = True

    def _sample(self, ids, digests, margins):
        self.samples += 1
        self.calls.append(self.name)
        if self.always_off or self.samples == self.wrong:
            ids[-1] += 1
        ns = self.times[(self.samples - 1) % len(self.times)]
        shown = tuple(0.25 for _ in ids) if margins else None
        return Sample(tuple(ids), ns, tuple(digests), shown)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class FakeMachine:
    """A clock that only moves by hand; `others` and `stolen` processors are taken meanwhile."""

    def __init__(self, others=0.0, stolen=0.0):
        self.others, self.stolen = others, stolen
        self.at, self.foreign, self.lost, self.slept = 100.0, 0.0, 0.0, []

    def advance(self, seconds):
        self.at += seconds
        self.foreign += self.others * seconds
        self.lost += self.stolen * seconds

    def read(self):
        self.advance(0.5)
        own = self.at / 4
        return Reading(self.at, own + self.foreign, self.lost, own, 0.5)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.advance(seconds)

    def look(self):
        def now():
            return datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)

        return Look(read=self.read, sleep=self.sleep, now=now, window=2.0)
