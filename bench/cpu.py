"""Muser beside llama.cpp on this CPU, in turns within one run, against the bars.

    python bench/peers/llama_clang.py install
    python bench/models.py
    python bench/cpu.py --peer clang --pairs 5

Every row is llama-bench's measure: `decode` its tg128 (128 single tokens from an empty cache),
`prefill` its pp512 (512 tokens at once into an empty cache, logits of the last), each at one and at
two threads; here the first choice is made from every row of logits, and a warm-up of the same
shape comes before. Ids are fed, the same to both. The figure is the ratio of the medians, ours ÷
theirs in speed. `run` is the wall time of `muser run` for one token, when everything
is compiled and cached. Exit status 0 only if every bar is met on a quiet machine.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import models
from peers import llama_clang, llama_cpp_python
from peers.building import PeerError, told

from muser import places
from muser.bench import Cell, Plan, Side, reference_isa, run_plan
from muser.bench.record import require, write
from muser.bench.rivals import LlamaLibrarySide
from muser.bench.walls import run_start
from muser.errors import MuserError

DECODE, PREFILL = Cell("decode", 0, 128), Cell("prefill", 0, 512)
KIND = "vs"


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio to reach, or for `run` seconds not to exceed; `then` is the one after it."""

    name: str
    model: str
    cell: Cell | None
    first: float
    then: float


BARS = (
    Bar("q4_1-decode", "smollm2-135m", DECODE, 0.95, 1.02),
    Bar("q8_0-decode", "smollm2-135m-q8_0", DECODE, 1.05, 1.12),
    Bar("gemma-decode", "gemma3-270m", DECODE, 1.2, 1.4),
    Bar("q4_1-prefill", "smollm2-135m", PREFILL, 1.1, 2.0),
    Bar("gemma-prefill", "gemma3-270m", PREFILL, 1.5, 3.0),
    Bar("run", "smollm2-135m", None, 0.7, 0.45),
)
RUN = BARS[-1]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its bar. Speeds in tokens a second; of `run` all are seconds.

    `problem` says why there is no figure.
    """

    bar: Bar
    threads: int | None
    figure: float | None = None
    least: float | None = None
    ours: float | None = None
    theirs: float | None = None
    problem: str = ""

    @property
    def is_met(self) -> bool:
        if self.figure is None:
            return False
        if self.bar.cell is None:
            return self.figure <= self.bar.first
        return self.figure >= self.bar.first


def main() -> None:
    chosen = _arguments()
    try:
        opens = _opener(chosen.peer)
    except PeerError as error:
        sys.exit(str(error))
    bars = [bar for bar in BARS if not chosen.only or bar.name in chosen.only]
    rows, records = measured(bars, opens, chosen)
    quiet = all(record["quiet"] for record in records)
    print("\n".join(table(rows, chosen.peer)))
    print("\n".join(memory_table(records)))
    if not quiet:
        print("The machine was not quiet: these figures are no evidence.")
    if chosen.json is not None:
        told_rows = [{**asdict(row), "met": row.is_met} for row in rows]
        found = {"peer": chosen.peer, "quiet": quiet, "rows": told_rows, "records": records}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    met = all(row.is_met for row in rows)
    sys.exit(0 if met and (quiet or chosen.allow_noise) else 1)


def measured(
    bars: Sequence[Bar], opens: Callable[[], Side], chosen: argparse.Namespace
) -> tuple[list[Row], list[dict[str, Any]]]:
    """The rows of all bars, model by model, and the records that they came from."""
    rows, records = [], []
    for model in dict.fromkeys(bar.model for bar in bars):
        some = [bar for bar in bars if bar.model == model and bar.cell is not None]
        if not some:
            continue
        try:
            record = _compared(models.bring(model), some, opens, chosen)
        except (MuserError, PeerError) as problem:
            rows += [
                Row(bar, at, problem=_reason(problem)) for bar in some for at in chosen.threads
            ]
            continue
        records.append(record)
        rows += [_row(bar, run, at) for run in record["runs"] for at, bar in enumerate(some)]
    if RUN in bars:
        try:
            records.append(_timed_run(chosen))
            rows.append(_run_row(records[-1]))
        except (MuserError, PeerError) as problem:
            rows.append(Row(RUN, None, problem=_reason(problem)))
    return rows, records


def _reason(problem: Exception) -> str:
    """The sentence without its remedy, where there are two."""
    return str(getattr(problem, "sentence", problem))


def _compared(
    model: Path, bars: Sequence[Bar], opens: Callable[[], Side], chosen: argparse.Namespace
) -> dict[str, Any]:
    """One model's record: its cells on both sides, in turns, with every count of threads."""
    cells = tuple(_with_bars(bar) for bar in bars)
    told(f"{model.name}: {', '.join(map(str, cells))}")
    plan = Plan(KIND, model, cells, chosen.threads, reference_isa(), chosen.pairs)
    record = run_plan(plan, open_theirs=opens, say=told)
    told(f"record    {write(record, chosen.records or places.records())}")
    require(record)
    return record


def _with_bars(bar: Bar) -> Cell:
    assert bar.cell is not None
    return Cell(bar.cell.surface, bar.cell.depth, bar.cell.tokens, bars=(bar.first, bar.then))


def _row(bar: Bar, run: dict[str, Any], at: int) -> Row:
    cell = run["cells"][at]
    return Row(
        bar=bar,
        threads=run["threads"],
        figure=cell["ratios"]["of_medians"],
        least=cell["ratios"]["least"],
        ours=cell["ours"]["tokens_per_second"],
        theirs=cell["theirs"]["tokens_per_second"],
    )


def _timed_run(chosen: argparse.Namespace) -> dict[str, Any]:
    """`muser run -n 1` as a person starts it; one cold start shows what the first costs."""
    told(f"muser run -n 1, {chosen.pairs} times")
    model = models.bring(RUN.model)
    record = run_start(model, chosen.pairs, reference_isa(), cold=1, say=told)
    told(f"record    {write(record, chosen.records or places.records())}")
    require(record)
    return record


def _run_row(record: dict[str, Any]) -> Row:
    warm = record["runs"][0]["warm"]
    middle, most = warm["median_ns"] / 1e9, warm["most_ns"] / 1e9
    return Row(RUN, None, figure=middle, least=most, ours=middle)


def table(rows: Sequence[Row], peer: str) -> list[str]:
    """A line for each row: both speeds, the figure, the worst pair, both bars."""
    lines = [
        f"ours ÷ llama.cpp ({peer}), tok/s; ratio of the medians; run in seconds",
        f"{'':14} threads {'ours':>9} {'theirs':>9} {'figure':>7} {'worst':>7}"
        f" {'bar':>6} {'then':>6}",
    ]
    return [*lines, *(_line(row) for row in rows)]


def _line(row: Row) -> str:
    name = f"{row.bar.name:14} {row.threads or '':>7}"
    if row.figure is None:
        return f"{name} not measured: {row.problem}"
    numbers = [
        _number(row.ours, 9, 2 if row.bar.cell is None else 1),
        _number(row.theirs, 9, 1),
        _number(row.figure, 7, 3),
        _number(row.least, 7, 3),
        _number(row.bar.first, 6, 2),
        _number(row.bar.then, 6, 2),
    ]
    return " ".join([name, *numbers, "met" if row.is_met else "MISSED"])


def _number(value: float | None, width: int, places_shown: int) -> str:
    return f"{'':{width}}" if value is None else f"{value:{width}.{places_shown}f}"


def memory_table(records: Sequence[dict[str, Any]]) -> list[str]:
    """Resident after the first load and highest until its cells were done, in MB, both sides."""
    lines = [f"{'MB':42} {'':7} {'file':>7} {'loaded':>7} {'(anon)':>7} {'highest':>8}"]
    for record in records:
        run = record["runs"][0]
        for side, loading in run.get("loading", {}).items():
            after, last = loading["after"], run["memory"][side]
            sizes = (record["model"]["bytes"], after["rss"], after["anonymous"], last["peak"])
            file, rss, anonymous, peak = (size / 1e6 for size in sizes)
            lines.append(
                f"{record['model']['file']:42} {side:7} {file:7.0f} {rss:7.0f}"
                f" {anonymous:7.0f} {peak:8.0f}"
            )
    return lines


def _opener(peer: str) -> Callable[[], Side]:
    """What opens the rival: a build of ours, or a libllama by path. Raises `PeerError`."""
    match peer:
        case "clang":
            return partial(LlamaLibrarySide, llama_clang.where(), name="llama.cpp by clang")
        case "gcc":
            return partial(LlamaLibrarySide, llama_cpp_python.library(), name="llama.cpp by gcc")
    return partial(LlamaLibrarySide, Path(peer))


def _threads(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--peer", default="clang", help="clang, gcc, or the path of a libllama")
    add("--pairs", type=int, default=5, help="counted repetitions on both sides")
    add("--only", action="append", choices=[bar.name for bar in BARS], help="may be repeated")
    add("--threads", type=_threads, default=(1, 2), metavar="1,2")
    add("--json", type=Path, metavar="FILE", help="write rows and records here")
    add("--records", type=Path, metavar="FOLDER", help="of the records; default Muser's own")
    add("--allow-noise", action="store_true", help="judge also on a machine that is not quiet")
    return parser.parse_args()


if __name__ == "__main__":
    main()
