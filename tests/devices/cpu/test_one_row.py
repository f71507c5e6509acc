"""The tape of a single row: what is done by every worker, by columns, or in common."""

import numpy as np
import pytest

from muser.devices import Limits
from muser.devices.cpu.arena import Arena
from muser.devices.cpu.moves import CACHE, Move
from muser.devices.cpu.one_row import place_one_row
from muser.graph import Graph
from muser.kernels import Args, address


@pytest.fixture
def arena(library):
    rows = {"stream": 32, "normed": 32, "q": 32, "gate": 64, "up": 64}
    graph = Graph("test", (), rows, {}, (), {}, 1, 8)
    return Arena.build(graph, Limits(8, 1, 4), {32: 64}, library.constants)


def row_wise(arena, reads, writes):
    args = Args(x=address(arena.rows[reads]), out=address(arena.rows[writes]))
    return Move("norm", args, writes, frozenset([reads]), frozenset([writes]), "n")


def elementwise(arena, reads, writes, width):
    args = Args(x=address(arena.rows[reads[0]]), y=address(arena.rows[reads[1]]))
    args.out = address(arena.rows[writes])
    return Move("add", args, writes, frozenset(reads), frozenset([writes]), "n", width)


def project(arena, reads, writes, width):
    scratch = arena.quantised[32]
    args = Args(codes=address(scratch.codes), out=address(arena.rows[writes]), width=width)
    return Move("project", args, writes, frozenset([reads]), frozenset([writes]), None, width)


def quantise(arena, reads):
    scratch = arena.quantised[32]
    args = Args(x=address(arena.rows[reads]), codes=address(scratch.codes))
    return Move("quantise", args, reads, frozenset([reads]), frozenset(["quantised 32"]), "n")


def test_what_follows_row_by_row_is_done_by_every_worker_on_its_own_rows(arena):
    moves = [
        row_wise(arena, "stream", "normed"),
        quantise(arena, "normed"),
        project(arena, "quantised 32", "q", 32),
    ]
    placed = place_one_row(moves, arena, 3)
    assert [one.whole for one in placed] == [True, True, False]
    assert [one.wait for one in placed] == [False, False, False]
    assert [len(one.args) for one in placed] == [3, 3, 3]
    targets = {record.out for record in placed[0].args}
    assert len(targets) == 3
    assert address(arena.rows["normed"]) not in targets
    assert {record.x for record in placed[0].args} == {address(arena.rows["stream"])}
    for worker in range(3):
        assert placed[1].args[worker].x == placed[0].args[worker].out
        assert placed[2].args[worker].codes == placed[1].args[worker].codes
    assert {record.out for record in placed[2].args} == {address(arena.rows["q"])}


def test_a_row_written_in_place_of_its_source_goes_to_copies(arena):
    """Rotation of a projected row: other workers may still read what one has done."""
    moves = [
        project(arena, "quantised 32", "q", 32),
        row_wise(arena, "q", "q"),
        row_wise(arena, "q", "normed"),
        row_wise(arena, "normed", "stream"),
    ]
    placed = place_one_row(moves, arena, 2)
    assert [one.wait for one in placed] == [False, True, False, False]
    shared = address(arena.rows["q"])
    assert all(record.x == shared != record.out for record in placed[1].args)
    assert [r.x for r in placed[2].args] == [r.out for r in placed[1].args]


def test_elements_of_projected_rows_are_cut_as_the_projection_was(arena):
    moves = [
        project(arena, "quantised 32", "gate", 64),
        project(arena, "quantised 32", "up", 64),
        elementwise(arena, ("gate", "up"), "gate", 64),
        quantise(arena, "gate"),
        project(arena, "quantised 32", "q", 32),
    ]
    placed = place_one_row(moves, arena, 2)
    assert [one.wait for one in placed] == [False, False, False, True, False]
    assert [record.striped for record in placed[2].args] == [1]
    assert [one.whole for one in placed[2:4]] == [False, True]


def test_a_projection_of_another_width_gives_no_cut(arena):
    moves = [
        project(arena, "quantised 32", "gate", 32),
        elementwise(arena, ("gate", "up"), "gate", 64),
        row_wise(arena, "gate", "stream"),
    ]
    placed = place_one_row(moves, arena, 2)
    assert [one.wait for one in placed] == [False, True, False]
    assert placed[1].args[0].striped == 0


def test_a_last_value_is_left_in_the_arena_by_one_worker(arena):
    moves = [row_wise(arena, "stream", "normed"), row_wise(arena, "normed", "q")]
    placed = place_one_row(moves, arena, 2)
    assert [one.whole for one in placed] == [True, False]
    assert {record.out for record in placed[1].args} == {address(arena.rows["q"])}
    assert [r.x for r in placed[1].args] == [r.out for r in placed[0].args]


def append(*caches):
    written = frozenset(f"{CACHE}{number}" for number in caches)
    return Move("kv_append", Args(), "kv", frozenset(["q"]), written, "n")


def attend(cache, target="gate"):
    reads = frozenset(["q", f"{CACHE}{cache}"])
    return Move("attention", Args(), "kqv", reads, frozenset([target]), None)


def test_every_worker_appends_the_same_to_a_cache_and_waits_for_no_other(arena):
    moves = [row_wise(arena, "stream", "q"), append(0), attend(0), append(1), attend(1, "up")]
    placed = place_one_row(moves, arena, 2)
    assert [one.whole for one in placed] == [True, True, False, True, False]
    assert [one.wait for one in placed] == [False, False, False, False, False]


def test_a_cache_that_is_read_before_it_is_written_is_waited_for(arena):
    moves = [row_wise(arena, "stream", "q"), attend(0), append(0), attend(0, "up")]
    placed = place_one_row(moves, arena, 2)
    assert [one.whole for one in placed] == [True, False, True, False]
    assert [one.wait for one in placed] == [False, False, True, False]


def test_a_cache_that_is_written_twice_is_written_by_one_worker_and_waited_for(arena):
    moves = [row_wise(arena, "stream", "q"), append(0), attend(0), append(0), attend(0, "up")]
    placed = place_one_row(moves, arena, 2)
    assert [one.whole for one in placed] == [True, False, False, False, False]
    assert [one.wait for one in placed] == [False, False, True, True, True]


def test_picking_rows_is_nothing_for_one_row(arena):
    take = Move("take_rows", Args(), "out_ids", frozenset(["q"]), frozenset(["q"]), None)
    placed = place_one_row([row_wise(arena, "stream", "q"), take, quantise(arena, "q")], arena, 1)
    assert [one.move.kernel for one in placed] == ["norm", "quantise"]


def test_copies_do_not_share_a_cache_line(arena):
    placed = place_one_row(
        [row_wise(arena, "stream", "normed"), row_wise(arena, "normed", "q")], arena, 2
    )
    first, second = (record.out for record in placed[0].args)
    assert first % 64 == second % 64 == 0
    assert abs(first - second) >= np.dtype(np.float32).itemsize * 32
