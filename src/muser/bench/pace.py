"""Speeds of a loaded model by the host's clock, without a reference: for a first look.

`muser bench decode | prefill | batch` measure the same as evidence: each side in its own process,
every answer compared.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter_ns

from muser.bench.spread import Spread
from muser.devices import Runner
from muser.devices.feeding import Ids, side_by_side, stretch

WARM = 4  # steps before the first that counts


def prefill_times(runner: Runner, ids: Ids, first: int = 0) -> Iterator[tuple[int, int, int]]:
    """Put `ids` into slot 0 from position `first` on: position, rows and ns of each step."""
    chunk = runner.limits.chunk
    for at in range(0, len(ids), chunk):
        step = stretch(ids[at : at + chunk], first + at)
        start = perf_counter_ns()
        runner.forward(step)
        yield first + at, len(step.tokens), perf_counter_ns() - start


def decode_times(runner: Runner, ids: Ids, depth: int) -> Spread:
    """A token after another into slot 0, from position `depth` on; more than `WARM` `ids`."""
    return _times(runner, [(ids[i : i + 1], depth + i) for i in range(len(ids))])


def batch_times(runner: Runner, ids: Ids, slots: int, steps: int) -> Spread:
    """`steps` (more than `WARM`) of a token into each of `slots` slots, from position 0 on."""
    return _times(runner, [(ids[i : i + slots], i) for i in range(steps)])


def _times(runner: Runner, tokens: Sequence[tuple[Ids, int]]) -> Spread:
    times = []
    for part, position in tokens:
        step = side_by_side(part, position)
        start = perf_counter_ns()
        runner.choose(step)
        times.append(perf_counter_ns() - start)
    return Spread.of(times[WARM:])
