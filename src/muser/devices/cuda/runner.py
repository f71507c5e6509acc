"""A model loaded on a CUDA card."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Lock

import numpy as np
from numpy.typing import NDArray

from muser.devices.cuda import roof
from muser.devices.cuda.buckets import FEW, HEAD_ROWS
from muser.devices.cuda.card import Card
from muser.devices.cuda.loading import shared_of
from muser.devices.cuda.moving import Moving
from muser.devices.cuda.placing import WeightSource
from muser.devices.cuda.rules import logits_row
from muser.devices.cuda.tape import Tape, served_by
from muser.devices.cuda.tapes import Part, Tapes
from muser.devices.cuda.timing import Timed, Timing
from muser.devices.device import Limits, Step
from muser.devices.steps import check_step, first_tokens
from muser.errors import Cancelled, DeviceError, DeviceLost
from muser.graph import Graph
from muser.kernels import CudaLibrary, bucket_of

F32 = NDArray[np.float32]


class CudaRunner:
    """A loaded model; see `Runner`. The card is this runner's until it is closed."""

    def __init__(
        self, card: Card, library: CudaLibrary, graph: Graph, weights: WeightSource, limits: Limits
    ) -> None:
        """Lowers the graph for every bucket. Raises `DeviceError` for an operator or type without
        a pipeline, `LimitError` for what does not fit into the card's memory, and `ModelError` for
        weights that are not finite; the card is closed then.
        """
        self.limits, self.vocabulary = limits, graph.vocabulary
        self._card, self._library = card, library
        self._stage, self._stop, self._closed = Lock(), Event(), False
        self._lost: DeviceLost | None = None
        self._timings: dict[tuple[Part, ...], Timing] = {}
        self._played: dict[Tape, None] = {}
        self._logits = logits_row(graph.ops)
        try:
            card.enter()
            shared = shared_of(card, library, graph, weights, limits)
            self._shared, self._tapes, self._moving = shared, Tapes(shared), Moving(shared)
        except BaseException:
            card.close()
            raise
        self.memory: Mapping[str, int] = shared.memory.sizes

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        return served_by(self._played)

    @property
    def libraries(self) -> Mapping[str, str]:
        return {self._library.name: self._library.sha256}

    def forward(self, step: Step) -> F32:
        with self._alone():
            if not self._tapes.has_tail:
                self._body(step)
                return self._moving.get(self._logits, len(step.tokens))[step.outputs]
            parts = [self._moving.get(self._logits, count) for _, count in self._pieces(step)]
        return np.concatenate(parts) if parts else np.empty((0, self.vocabulary), np.float32)

    def choose(self, step: Step) -> NDArray[np.int32]:
        if not self._tapes.has_tail:
            return first_tokens(self.forward(step))
        with self._alone():
            parts = [tail.block.chosen(count) for tail, count in self._pieces(step)]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def play(self, step: Step) -> None:
        """One step, which leaves its rows where they are."""
        with self._alone():
            for _ in self._pieces(step):
                pass

    def timed(self, step: Step) -> Timed:
        """A step that wants 1 to `HEAD_ROWS` rows, once in each of the ways of `timing.py`.

        Raises what `forward` raises.
        """
        with self._alone():
            check_step(step, self.limits, self.vocabulary)
            assert 0 < len(step.outputs) <= HEAD_ROWS
            body = self._tapes.body(step)
            body.block.write(step)
            if not self._tapes.has_tail:
                found = self._clocked((body,), len(step.tokens))
                return replace(found, logits=tuple(rows[step.outputs] for rows in found.logits))
            return self._clocked((body, self._tail(step.outputs)), len(step.outputs))

    def free_bytes(self) -> int:
        """Memory of the card that nobody has taken."""
        with self._alone():
            return self._card.free_bytes()

    def reading_times(self, size: int, plays: int) -> list[float]:
        """See `muser.devices.cuda.roof.reading_times`."""
        with self._alone():
            return roof.reading_times(self._shared, size, plays)

    def empty_launch(self, plays: int) -> list[float]:
        """See `muser.devices.cuda.roof.empty_launch`."""
        with self._alone():
            return roof.empty_launch(self._shared, plays)

    def put_rows(self, name: str, rows: F32) -> None:
        """The first rows called `name`."""
        with self._alone():
            self._moving.put(name, rows)

    def get_rows(self, name: str, count: int) -> F32:
        """The first `count` rows called `name`, as the last step left them."""
        with self._alone():
            return self._moving.get(name, count)

    def export_rows(
        self, layer: int, slot: int, first: int, last: int
    ) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """Stored K and V of positions `first` to `last` − 1: f16 `[positions, kv heads, dim]`."""
        with self._alone():
            return self._moving.export_rows(layer, slot, first, last)

    def import_rows(
        self,
        layer: int,
        slot: int,
        first: int,
        keys: NDArray[np.float16],
        values: NDArray[np.float16],
    ) -> None:
        """The inverse of `export_rows`; rows off the grid are snapped to it."""
        with self._alone():
            self._moving.import_rows(layer, slot, first, keys, values)

    def cancel(self) -> None:
        self._stop.set()

    def resume(self) -> None:
        self._played.clear()
        self._stop.clear()

    def close(self) -> None:
        """Waits for a running step; a later one is refused."""
        self._stop.set()
        with self._stage:
            self._closed = True
            self._card.close()

    def _pieces(self, step: Step) -> Iterator[tuple[Part, int]]:
        """Plays a step; each tail with how many wanted rows it has just made."""
        wanted = [
            step.outputs[first : first + HEAD_ROWS]
            for first in range(0, len(step.outputs), HEAD_ROWS)
        ]
        if not self._tapes.has_tail or not wanted:
            self._body(step)
            return
        bucket = bucket_of(len(step.tokens))
        if bucket in FEW and bucket_of(len(wanted[0])) == bucket:
            tail = self._tail(wanted[0])
            self._body(step, tail)
            yield tail, len(wanted[0])
            return
        self._body(step)
        for outputs in wanted:
            tail = self._tail(outputs)
            self._go(tail)
            yield tail, len(outputs)

    def _body(self, step: Step, *tail: Part) -> None:
        check_step(step, self.limits, self.vocabulary)
        body = self._tapes.body(step)
        body.block.write(step)
        self._go(body, *tail)

    def _clocked(self, parts: tuple[Part, ...], count: int) -> Timed:
        """`count`: how many rows of logits they leave."""
        self._begin(*parts)
        if parts not in self._timings:
            self._timings[parts] = Timing(self._card, parts)
        return self._timings[parts].round(lambda: self._moving.get(self._logits, count))

    def _tail(self, outputs: NDArray[np.int32]) -> Part:
        tail = self._tapes.tail(bucket_of(len(outputs)))
        tail.block.want(outputs)
        return tail

    def _go(self, *parts: Part) -> None:
        self._begin(*parts)
        self._tapes.play(*parts)

    def _begin(self, *parts: Part) -> None:
        if self._stop.is_set():
            raise Cancelled("The step was cancelled.", "Start it again if it is still wanted.")
        self._played |= dict.fromkeys(part.tape for part in parts)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The card's memory belongs to one caller at a time; a lost card to none."""
        if not self._stage.acquire(blocking=False):
            raise DeviceError(
                "This runner is already computing a step.", "Call it from one thread at a time."
            )
        try:
            if self._closed:
                raise DeviceError("This runner is closed.", "Load the model again.")
            if self._lost is not None:
                raise DeviceLost(self._lost.sentence, self._lost.remedy)
            self._card.enter()
            yield
        except DeviceLost as lost:
            self._lost = lost
            raise
        finally:
            self._stage.release()
