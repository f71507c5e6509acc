"""The page of hand-made records, to the letter; `python -m tests.bench.test_report` rewrites it."""

from pathlib import Path

import pytest

from muser.bench import record as records
from muser.bench.breakdown import by_label
from muser.bench.report import report
from muser.errors import FormatError
from tests.bench import written

GOLDEN = Path(__file__).parent / "data" / "benchmarks.md"


def page(folder):
    for record in written.ALL:
        records.write(record, folder / "bench" / "records")
    return report(folder / "bench" / "records", folder / "docs" / "benchmarks.md")


def test_the_page_is_the_golden_one(tmp_path):
    assert page(tmp_path) == GOLDEN.read_text(encoding="utf-8")


def test_every_link_leads_to_a_record_and_every_record_is_linked(tmp_path):
    text = page(tmp_path)
    links = dict(line[1:].split("]: ") for line in text.splitlines() if line.startswith("[r"))
    found = {(tmp_path / "docs" / link).resolve() for link in links.values()}
    assert found == set((tmp_path / "bench" / "records").resolve().glob("*.json"))
    assert all(text.count(f"[{name}]") > 1 for name in links)


def test_misses_are_told_again(tmp_path):
    misses = page(tmp_path).split("## Misses")[1].split("## What ran")[0]
    for said in (
        "the bar 1.4 is missed against llama.cpp by clang b1: [1.250]",
        "the bar 1.1 is missed against llama.cpp by clang b1: [0.900]",
        "1 of 3 pairs are below 1",
        "`exact: false`",
        "[not quiet]",
        "unsteady: ours has a CV of [20.0%]",
        "decode: [failed][r6]: decode 128 at depth 0: choice 7 is 1, the reference chose 2.",
    ):
        assert said in misses
    assert "the bar 1.2" not in misses


def test_a_rivals_cards_and_layers_are_told(tmp_path):
    said = {"cards": [{"device": "CUDA0", "name": "H"}], "offloaded": {"layers": 52, "of": 53}}
    [run] = written.VERSUS["runs"]
    sides = {**run["sides"], "theirs": {**run["sides"]["theirs"], "settings": said}}
    records.write({**written.VERSUS, "runs": [{**run, "sides": sides}]}, tmp_path / "records")
    text = report(tmp_path / "records", tmp_path / "page.md")
    assert "`; on CUDA0 H; 52 of 53 layers on cards. In [r1]" in text


def test_no_records_no_figures(tmp_path):
    (tmp_path / "none").mkdir()
    text = report(tmp_path / "none", tmp_path / "page.md")
    assert text.endswith("No records yet.\n")


def test_an_edited_record_makes_no_page(tmp_path):
    page(tmp_path)
    path = next((tmp_path / "bench" / "records").glob("*-vs-*.json"))
    path.write_text(path.read_text().replace('"cores": 2', '"cores": 4'))
    with pytest.raises(FormatError):
        report(tmp_path / "bench" / "records", tmp_path / "docs" / "benchmarks.md")


def test_pipelines_are_summed_by_label():
    first, second = by_label(written.STEP)
    assert (first.label, first.entries, first.ns) == ("project[x]", 2, 800_000.0)
    assert (first.gigabytes_per_second, first.gigaops_per_second) == (20.0, 40.0)
    assert (second.label, second.bytes) == ("add[x]", 0)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        GOLDEN.write_text(page(Path(scratch)), encoding="utf-8")
