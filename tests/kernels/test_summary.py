"""What a run says it compared: all of it for who asks, else a line for each instruction set."""

from types import SimpleNamespace

import pytest

from .conftest import Tally, _is_asked_for


@pytest.fixture
def filled():
    tally = Tally()
    for what, isa, threads, labels, count in (
        ("Q4_0", "c", 1, ("p[isa=c,bucket=1]", "p[isa=c,bucket=4]"), 5),
        ("Q4_0", "c", 2, ("p[isa=c,bucket=1]",), 2),
        ("norm", "avx2", 1, ("norm[isa=avx2]",), 3),
    ):
        tally.counts[what, isa, threads] = count
        tally.labels[what, isa, threads] = dict.fromkeys(labels)
        tally.hashes[isa] = f"<{isa}>"
    return tally


def test_the_table_has_a_line_for_each_format_set_and_thread_count(filled):
    assert [line.split() for line in filled.table()] == [
        ["Q4_0", "c", "1", "threads", "5", "p[isa=c,bucket=1|4]"],
        ["Q4_0", "c", "2", "threads", "2", "p[isa=c,bucket=1]"],
        ["norm", "avx2", "1", "threads", "3", "norm[isa=avx2]"],
    ]


def test_the_totals_have_a_line_for_each_set(filled):
    assert list(filled.totals()) == [
        "cpu-avx2: 3 comparisons of 1 pipelines under 1 threads, library <avx2>",
        "cpu-c: 7 comparisons of 2 pipelines under 1, 2 threads, library <c>",
    ]


@pytest.mark.parametrize(
    ("arguments", "verbose", "asked"),
    [
        (["tests"], -1, False),
        (["tests/cli"], -1, False),
        (["tests/cli", "tests/kernels"], -1, True),
        (["tests/kernels/test_project.py::test_it"], -1, True),
        (["tests"], 0, True),
    ],
)
def test_who_asks_for_the_table(pytestconfig, arguments, verbose, asked):
    config = SimpleNamespace(
        args=arguments,
        option=SimpleNamespace(verbose=verbose),
        invocation_params=SimpleNamespace(dir=pytestconfig.rootpath),
    )
    assert _is_asked_for(config) == asked
