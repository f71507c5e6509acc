"""A model loaded on the CPU device."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from muser import places
from muser.devices.cpu.arena import Arena
from muser.devices.cpu.lowering import Lowering, WeightSource, block_size
from muser.devices.cpu.one_row import place_one_row
from muser.devices.cpu.planes import Cache
from muser.devices.cpu.rules import ARGMAX, lower
from muser.devices.cpu.tape import Player, Stamps, Tape, labels_by_type, place
from muser.devices.device import Limits, Step
from muser.devices.steps import check_step, first_tokens
from muser.errors import DeviceError
from muser.graph import Argmax, CacheSpec, Graph, Project, TakeRows
from muser.kernels import BUCKETS, CACHE_LINE, Constants, Library, bucket_of
from muser.kv import round_up
from muser.weights import Mapped, Packed, pack


class CpuRunner:
    """A loaded model; see `Runner`. `mapped` is told of a file of packed weights: see `pack`."""

    def __init__(
        self,
        library: Library,
        threads: int,
        graph: Graph,
        weights: WeightSource,
        limits: Limits,
        mapped: Mapped | None = None,
    ) -> None:
        self.limits = limits
        self.vocabulary = graph.vocabulary
        self._stage = Lock()
        self._library = library
        widths = _widest_sources(graph, weights)
        constants = library.constants
        self._arena = Arena.build(_with_argmax(graph), limits, widths, constants)
        panels = _packed(library, graph, weights, threads, mapped)
        lowering = Lowering(graph, weights, self._arena, limits.context, constants, panels)
        moves = lower(lowering)
        self._keep = lowering.keep, panels
        placed = dict.fromkeys(BUCKETS, place(moves))
        placed["1"] = place_one_row(moves, self._arena, threads)
        self._tapes = {bucket: Tape.record(placed[bucket], library, bucket) for bucket in BUCKETS}
        self._player = Player(library, threads, _scratch_bytes(widths, graph.caches, constants))
        self._played: set[str] = set()  # buckets since `resume`
        self._logits = _logits_row(graph)
        self._takes_rows = any(isinstance(op, TakeRows) for op in graph.ops)

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        return labels_by_type(self._tapes[bucket] for bucket in BUCKETS if bucket in self._played)

    @property
    def libraries(self) -> Mapping[str, str]:
        return {self._library.name: self._library.sha256}

    @property
    def tapes(self) -> Mapping[str, Tape]:
        """Row bucket to what is played for it."""
        return self._tapes

    @property
    def rows(self) -> Mapping[str, NDArray[np.float32]]:
        """The arena, as the last step left it."""
        return self._arena.rows

    @property
    def caches(self) -> tuple[Cache, ...]:
        """One a layer; `export_rows` and `import_rows` speak f16."""
        return self._arena.caches

    def put_rows(self, name: str, rows: NDArray[np.float32]) -> None:
        self._arena.rows[name][: len(rows)] = rows

    def get_rows(self, name: str, count: int) -> NDArray[np.float32]:
        """The first `count` rows called `name`, as the last step left them."""
        return self._arena.rows[name][:count].copy()

    def export_rows(
        self, layer: int, slot: int, first: int, last: int
    ) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """Stored K and V of positions `first` to `last` − 1: f16 `[positions, kv heads, dim]`."""
        return self._arena.caches[layer].export_rows(slot, first, last)

    def import_rows(
        self,
        layer: int,
        slot: int,
        first: int,
        keys: NDArray[np.float16],
        values: NDArray[np.float16],
    ) -> None:
        """The inverse of `export_rows`; rows off the grid are snapped to it."""
        self._arena.caches[layer].import_rows(slot, first, keys, values)

    def forward(self, step: Step) -> NDArray[np.float32]:
        with self._alone():
            self._play(step)
            return self._chosen(step)

    def choose(self, step: Step) -> NDArray[np.int32]:
        return first_tokens(self.forward(step))

    def play(self, step: Step) -> None:
        """One pass over the tape of the step's row bucket; the rows stay in the arena."""
        with self._alone():
            self._play(step)

    def forward_timed(self, step: Step) -> tuple[NDArray[np.float32], Tape, Stamps]:
        """`forward`, what was played, and when each entry began and ended on each worker."""
        with self._alone():
            tape = self._set(step)
            stamps = self._player.play_timed(tape)
            return self._chosen(step), tape, stamps

    def _chosen(self, step: Step) -> NDArray[np.float32]:
        rows = self._arena.rows[self._logits]
        return np.array(rows[: len(step.outputs)] if self._takes_rows else rows[step.outputs])

    def _play(self, step: Step) -> None:
        self._player.play(self._set(step))

    def _set(self, step: Step) -> Tape:
        """The tape of the step, whose data are written."""
        check_step(step, self.limits, self.vocabulary)
        self._arena.step.write(step)
        bucket = bucket_of(len(step.tokens))
        self._played.add(bucket)
        return self._tapes[bucket]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The step data and the arena belong to one caller at a time."""
        if not self._stage.acquire(blocking=False):
            raise DeviceError(
                "This runner is already computing a step.", "Call it from one thread at a time."
            )
        try:
            yield
        finally:
            self._stage.release()

    def cancel(self) -> None:
        self._player.cancel()

    def resume(self) -> None:
        self._played.clear()
        self._player.resume()

    def close(self) -> None:
        self._player.close()


def _packed(
    library: Library, graph: Graph, weights: WeightSource, threads: int, mapped: Mapped | None
) -> Packed:
    """The weights of all projections in panels, for a library that reads them so."""
    if not library.constants.packed:
        return {}
    names = [name for op in graph.ops if isinstance(op, Project) for name in op.weights]
    return pack(library, weights, names, places.packed(), threads, mapped)


def _widest_sources(graph: Graph, weights: WeightSource) -> dict[int, int]:
    """Block size to the widest row that a projection reads in such blocks."""
    widest: dict[int, int] = {}
    for op in graph.ops:
        for name in op.weights if isinstance(op, Project) else ():
            assert isinstance(op, Project)
            block, width = block_size(weights.tensor(name).type), graph.rows[op.source]
            if weights.tensor(name).type.elements > 1 and width % block:
                raise DeviceError(
                    f"{name} has rows of {width} elements, not a multiple of {block}.",
                    "The file is inconsistent; convert the model again.",
                )
            widest[block] = max(widest.get(block, 0), width)
    return widest


def _scratch_bytes(
    widths: Mapping[int, int], caches: Sequence[CacheSpec], constants: Constants
) -> int:
    """One worker's: a strip of unpacked weight rows, or what attention takes; the larger one."""
    needs = [0]
    for block, width in widths.items():
        span = round_up(width, block)
        row = 2 * span + constants.strip_head_bytes * (span // block)
        needs.append(constants.strip * row)
    for spec in caches:
        stride = round_up(spec.head_dim, constants.plane_lanes)
        needs.append(constants.attend_bytes + constants.attend_code_bytes * stride)
    return round_up(max(needs), CACHE_LINE) + CACHE_LINE


def _with_argmax(graph: Graph) -> Graph:
    if not any(isinstance(op, Argmax) for op in graph.ops):
        return graph
    return replace(graph, rows={**graph.rows, ARGMAX: 1})


def _logits_row(graph: Graph) -> str:
    last = graph.ops[-1]
    if isinstance(last, Argmax):
        return last.source
    return last.targets[-1] if isinstance(last, Project) else str(getattr(last, "target", ""))
