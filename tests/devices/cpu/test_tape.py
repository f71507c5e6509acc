"""Tapes: barriers where data meet, cancelling, faults, forks, and operators without a pipeline."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

from muser.devices import Limits
from muser.devices.cpu.moves import Move, barriers
from muser.devices.cpu.roof import reading_times
from muser.devices.cpu.rules import STRIPED_WIDTH
from muser.errors import ArithmeticFault, Cancelled, DeviceError, LimitError
from muser.formats import BlockType
from muser.graph import Add, Project, RmsNorm, Scale, Softcap
from muser.kernels import Args
from tests.kernels.bench import Bench, Tensors, random_blocks, random_rows, step_of

WIDTH = 4096


def chain(library, threads, length, width=WIDTH, factor=1.0):
    ops = [Scale("a", "a", factor, f"scale-{i}") for i in range(length)]
    return Bench(library, threads, ops, {"a": width})


def move(reads, writes, cut):
    """`cut`: the name of a row count, a width cut by columns, or None."""
    by_row, columns = (None, cut) if isinstance(cut, int) else (cut, None)
    return Move("k", Args(), "node", frozenset(reads), frozenset(writes), by_row, columns)


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (("x", "a", None), ("y", "b", None), False),
        (("x", "a", None), ("a", "b", None), True),
        (("a", "b", None), ("x", "a", None), True),
        (("x", "a", None), ("y", "a", None), True),
        (("x", "a", "n"), ("a", "b", "n"), False),
        (("x", "a", "n"), ("a", "b", "m"), True),
        (("x", "a", "n"), ("a", "b", None), True),
        (("x", "a", 64), ("a", "b", 64), False),
        (("x", "a", 64), ("a", "b", 32), True),
        (("x", "a", "n"), ("a", "b", 64), True),
    ],
)
def test_barriers_stand_where_data_meet(first, second, waits):
    assert barriers([move(*first), move(*second)]) == [False, waits]


def test_a_barrier_covers_all_entries_before_it():
    moves = [move("x", "a", None), move("y", "b", None), move("a", "c", None), move("b", "d", None)]
    assert barriers(moves) == [False, False, True, False]


KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def interrupted(library, threads, length, at, act, width=STRIPED_WIDTH):
    """A chain of doublings whose entry `at` is `act(runner)`, called by every worker.

    Rows of `STRIPED_WIDTH` are cut by columns; for them a barrier is put before every entry.
    """
    bench = chain(library, threads, length, width=width, factor=2.0)
    bench.act = KERNEL(lambda args, worker: act(bench.runner))
    for tape in bench.runner.tapes.values():
        for entry in tape.entries:
            entry.wait = int(width == STRIPED_WIDTH)
        tape.entries[at].run = ctypes.cast(bench.act, ctypes.c_void_p)
    bench.runner.rows["a"][0] = 1
    return bench


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_cancel_stops_before_the_next_entry(library, threads):
    bench = interrupted(library, threads, 20, 7, lambda runner: runner.cancel())
    with pytest.raises(Cancelled):
        bench.runner.play(step_of(1))
    assert np.all(bench.runner.rows["a"][0] == 2.0**7)
    bench.close()


def test_cancel_stays_until_resume(library):
    bench = chain(library, 2, 3, width=64)
    x = random_rows(np.random.default_rng(1), 4, 64)
    bench.runner.cancel()
    for _ in range(2):
        with pytest.raises(Cancelled):
            bench.play({"a": x}, "a")
    bench.runner.resume()
    assert np.array_equal(bench.play({"a": x}, "a"), x)
    bench.close()


def test_a_cancel_that_is_forgotten_too_early_still_ends_its_play(library):
    """Each worker has one row. The second skips an entry, then the first one forgets the cancel:
    else a play without that entry would look whole."""
    turns, asked = iter([True, False]), threading.Event()

    def act(runner):
        if next(turns):
            runner.cancel()
            asked.set()
            time.sleep(0.1)  # the second worker goes on meanwhile and finds the cancel
            runner.resume()
        asked.wait()

    bench = interrupted(library, 2, 4, 1, act, width=64)
    bench.runner.rows["a"][:2] = 1
    try:
        bench.runner.play(step_of(2))
        assert np.all(bench.runner.rows["a"][:2] == 2.0**3)
    except Cancelled:
        assert not np.all(bench.runner.rows["a"][:2] == 2.0**3)
    bench.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_close_waits_for_the_player(library, threads):
    inside, go = threading.Event(), threading.Event()

    def act(runner):
        inside.set()
        go.wait()

    bench, seen = interrupted(library, threads, 4, 1, act), []
    player = threading.Thread(target=lambda: seen.append(failure(bench, Cancelled)))
    player.start()
    inside.wait()
    closers = [threading.Thread(target=bench.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    closers[0].join(0.1)
    assert all(closer.is_alive() for closer in closers)
    go.set()
    for thread in (player, *closers):
        thread.join()
    assert seen == ["The step was cancelled."]
    assert failure(bench, DeviceError) == "This runner is closed."
    bench.runner.resume()
    assert failure(bench, DeviceError) == "This runner is closed."


def failure(bench, kind):
    with pytest.raises(kind) as caught:
        bench.runner.play(step_of(1))
    return caught.value.sentence


LEAVING = """
import threading
from muser.kernels import Shelf, choose_library
from muser.places import libraries
from tests.devices.cpu.test_tape import chain, step_of
bench = chain(choose_library(Shelf(libraries())), 2, 20000)
def play():
    while True:
        started.set()
        bench.runner.play(step_of(64))
started = threading.Event()
threading.excepthook = lambda args: None
threading.Thread(target=play, daemon=True).start()
started.wait()
"""


def test_an_interpreter_that_ends_while_a_thread_plays():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LEAVING], env=environment, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def thread_ids():
    """The kernel's ids of this process's threads; others' threads may come and go meanwhile."""
    return set(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system lists no threads")
def test_a_collected_runner_ends_its_threads(library):
    before = thread_ids()
    bench = chain(library, 4, 1, width=64)
    started = thread_ids() - before
    assert len(started) == 3
    del bench
    gc.collect()
    deadline = time.monotonic() + 60  # a joined thread may stay listed for a moment
    while started & thread_ids():
        assert time.monotonic() < deadline, "threads of a collected runner go on"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_fault_names_the_first_node_and_row(library, threads):
    """Rows 11 and 40 leave the finite numbers at entry 2, row 5 only later."""
    bench = chain(library, threads, 4, width=128, factor=2.0**40)
    x = np.ones((48, 128), np.float32)
    x[[11, 40], 77] = 2.0**30
    x[5] = 2.0**-2
    for _ in range(20):
        with pytest.raises(ArithmeticFault, match=r"Row 11 of scale-2 .*scale\[isa="):
            bench.play({"a": x}, "a")
    x[[11, 40]] = 0
    x[5] = x[0] = 2.0**-40
    x[:] = np.minimum(x, np.float32(2.0**-40))
    bench.play({"a": x}, "a")
    bench.close()


@pytest.mark.parametrize(
    ("ops", "value"),
    [
        ([Add("a", "a", "b", "node")], 3e38),
        ([RmsNorm("a", "b", None, 1e-5, "node")], 1e25),
        ([Scale("a", "b", 1e10, "x"), Softcap("b", "b", 30.0, "node")], 1e35),
    ],
)
def test_infinity_that_would_vanish_is_a_fault(library, ops, value):
    """A sum of squares that is divided away, a scaled logit that the cap would hide."""
    bench = Bench(library, 1, ops, {"a": 32, "b": 32})
    x = np.ones((3, 32), np.float32)
    x[1] = value
    with pytest.raises(ArithmeticFault, match="Row 1 of node"):
        bench.play({"a": x}, "b")
    bench.close()


@pytest.mark.parametrize("kind", [BlockType.Q4_1, BlockType.Q4_K, BlockType.F16])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_projection_overflow_is_a_fault(libraries, kind, rows):
    for library in libraries.values():
        rng, tensors = np.random.default_rng(2), Tensors()
        tensors.put("w", kind, random_blocks(rng, kind, 9, 256), 256)
        bench = Bench(
            library, 2, [Project("x", ("y",), ("w",), ("y",))], {"x": 256, "y": 9}, tensors
        )
        x = random_rows(rng, rows, 256)
        x[-1] = 3e38
        with pytest.raises(ArithmeticFault, match=f"Row {rows - 1} of y"):
            bench.play({"x": x}, "y")
        bench.close()


def test_forked_child_is_refused(library):
    bench = chain(library, 2, 3, width=64)
    child = os.fork()
    if child == 0:
        try:
            bench.runner.play(step_of(1))
        except DeviceError as error:
            bench.close()
            os._exit(7 if "forked" in error.sentence else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    bench.runner.play(step_of(1))
    bench.close()


def test_two_callers_at_once_are_refused(library):
    """And the second one's step does not touch the data that the first one reads."""
    inside, go = threading.Event(), threading.Event()

    def act(runner):
        inside.set()
        go.wait()

    bench = interrupted(library, 1, 4, 1, act)
    first = threading.Thread(target=lambda: bench.runner.play(step_of(1)))
    first.start()
    inside.wait()
    with pytest.raises(DeviceError, match="already computing"):
        bench.runner.play(step_of(64))
    go.set()
    first.join()
    assert np.all(bench.runner.rows["a"][0] == 2.0**3)
    assert not bench.runner.rows["a"][1:].any()
    bench.close()


def test_closed_runner_is_refused(library):
    bench = chain(library, 2, 1, width=64)
    bench.close()
    bench.close()
    with pytest.raises(DeviceError, match="closed"):
        bench.runner.play(step_of(1))


@dataclass(frozen=True)
class Mystery:
    node: str = "mystery"


def test_operator_without_a_pipeline_is_refused(library):
    with pytest.raises(DeviceError, match="no pipeline for Mystery"):
        Bench(library, 1, [Mystery()], {"a": 4})


def test_many_short_plays_with_more_threads_than_cores(library):
    """Rounds and barriers under contention: sleeping, waking, and the results in between."""
    bench = chain(library, 5, 6, width=256, factor=-1.0)
    x = random_rows(np.random.default_rng(3), 64, 256)
    for count in [1, 64, 3, 17] * 25:
        assert np.array_equal(bench.play({"a": x[:count]}, "a"), x[:count])
        if count == 17:
            time.sleep(0.002)
    bench.close()


def test_limits_of_a_step(library):
    bench = Bench(
        library,
        1,
        [Scale("a", "a", 1.0, "s")],
        {"a": 4},
        limits=Limits(context=8, slots=2, chunk=4),
    )
    play = bench.runner.play
    with pytest.raises(LimitError, match="5 rows"):
        play(step_of(5))
    with pytest.raises(LimitError, match="positions"):
        play(step_of(1, positions=[8]))
    with pytest.raises(LimitError, match="slots"):
        play(step_of(1, slots=[2]))
    with pytest.raises(LimitError, match="tokens"):
        play(step_of(1, tokens=[-1]))
    with pytest.raises(LimitError, match="ascend"):
        play(step_of(3, outputs=[1, 0]))
    with pytest.raises(LimitError, match="2 slots for 3 rows"):
        play(step_of(3, slots=[0, 0]))
    play(step_of(4, positions=[4, 5, 6, 7]))
    bench.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_timed_play_is_the_same_play_with_every_entry_stamped(library, threads):
    bench = chain(library, threads, 5, factor=2.0)
    bench.runner.rows["a"][:2] = 1
    logits, tape, stamps = bench.runner.forward_timed(step_of(2))
    assert np.all(bench.runner.rows["a"][:2] == 2.0**5)
    assert np.array_equal(logits, bench.runner.rows["a"][:2])
    assert stamps.entries.shape == (threads, len(tape.entries), 2)
    for worker in stamps.entries:
        times = [stamps.begin, *worker.reshape(-1), stamps.end]
        assert times == sorted(times)
    bench.runner.play(step_of(2))
    assert np.all(bench.runner.rows["a"][:2] == 2.0**10)
    bench.close()


def test_no_entry_begins_before_those_that_its_barrier_waits_for(library):
    bench = chain(library, 2, 6, width=STRIPED_WIDTH)
    for entry in bench.runner.tapes["1"].entries:
        entry.wait = 1
    _, _, stamps = bench.runner.forward_timed(step_of(1))
    begin, end = stamps.entries[:, 1:, 0], stamps.entries[:, :-1, 1]
    assert np.all(begin.min(axis=0) >= end.max(axis=0))
    bench.close()


def test_a_timed_play_can_be_cancelled_and_fault(library):
    bench = interrupted(library, 2, 20, 7, lambda runner: runner.cancel())
    with pytest.raises(Cancelled):
        bench.runner.forward_timed(step_of(1))
    bench.runner.resume()
    bench.runner.rows["a"][0] = np.inf
    with pytest.raises(ArithmeticFault, match="scale-0"):
        bench.runner.forward_timed(step_of(1))
    bench.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_roof_reads_every_byte_once(library, threads):
    buffer = np.random.default_rng(threads).integers(0, 256, 100_000, np.uint8)
    times = reading_times(library, threads, buffer, 3)  # compares the sums of what was read
    assert len(times) == 3
    assert min(times) > 0
