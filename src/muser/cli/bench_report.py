"""`muser bench report`: the page that shows all records of a folder."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from muser.errors import UsageError


def report(
    *,
    records: Annotated[Path, Parameter(help="Folder of the records.")] = Path("bench/records"),
    out: Annotated[Path, Parameter(help="The page.")] = Path("docs/benchmarks.md"),
    check: Annotated[
        bool,
        Parameter(help="Write nothing; fail if the page is another.", negative=()),
    ] = False,
) -> None:
    """Write docs/benchmarks.md from the records; the same records give the same bytes."""
    from muser.bench.report import report as page

    if not records.is_dir():
        raise UsageError(f"{records} is no folder.", "Name the one that holds the records.")
    text = page(records, out)
    if not check:
        out.write_text(text, encoding="utf-8")
        return
    if not out.is_file() or out.read_text(encoding="utf-8") != text:
        raise UsageError(
            f"{out} is not what the records of {records} say.", "Run `muser bench report` again."
        )
