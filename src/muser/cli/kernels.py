"""`muser kernels`: the compiled libraries on disk."""

import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from muser.cli.console import one_line
from muser.cli.model_list import aligned
from muser.cli.progress import narrated

if TYPE_CHECKING:
    from muser.kernels.listing import Item

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def kernels_app() -> App:
    """The commands of `muser kernels`."""
    app = App(name="kernels", help="List, build and clear the compiled kernel libraries.")
    app.command(list_kernels, name="list")
    app.command(build)
    app.command(clear)
    return app


def list_kernels(
    *,
    json: Annotated[
        bool, Parameter(help="Print one JSON record.", negative=(), show_default=False)
    ] = False,
) -> None:
    """List the compiled libraries, each verified against its hash now."""
    from muser import places
    from muser.kernels.listing import distrust, items

    folder = places.libraries()
    found, now = items(folder), time.time()
    if json:
        import json as codec

        record = {"folder": str(folder), "libraries": [_record(item, now) for item in found]}
        print(codec.dumps(record))
        return
    if found:
        head = ("NAME", "CONTRACT", "COMPILER", "SIZE", "AGE", "STATE", "SHA-256")
        print(aligned([head, *(_row(item, now) for item in found)]) + "\n")
    reason = distrust(folder)
    print(f"Libraries folder: {one_line(str(folder))}" + (f" ({reason}: not used)" * bool(reason)))


def build(
    *,
    isa: Annotated[
        tuple[str, ...],
        Parameter(
            help="Only for this instruction set; repeatable.", negative=(), show_default=False
        ),
    ] = (),
) -> None:
    """Compile the kernels for all instruction sets of this machine and prove them."""
    from muser import places
    from muser.devices import CpuDevice
    from muser.kernels import Shelf, choose_library, supported_isas

    shelf = Shelf(places.libraries())
    with narrated():
        wanted = isa or supported_isas(choose_library(shelf, "c"))  # plain C is one of them
        for name in wanted:
            library = CpuDevice(threads=1, isa=name, shelf=shelf).library
            print(f"{library.name}  {library.sha256}", flush=True)


def clear() -> None:
    """Remove the compiled libraries; they are compiled again when they are needed."""
    from muser import places
    from muser.kernels.listing import clear as clear_shelf

    count, size = clear_shelf(places.libraries())
    what = "1 library" if count == 1 else f"{count} libraries"
    print(f"Removed {what}, {size:,} bytes in all, from {one_line(str(places.libraries()))}")


def _record(item: "Item", now: float) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "name": name_of(item),
        **(asdict(item.about) if item.about else {}),
        "key": item.key,
        "sha256": item.sha256,
        "bytes": item.size,
        "age_s": round(now - item.modified, 1),
        "state": item.fault or "verified",
    }


def _row(item: "Item", now: float) -> tuple[str, ...]:
    about = item.about
    cells = (
        name_of(item),
        about.contract if about else "?",
        compiler_of(about.compiler) if about else "?",
        f"{item.size / 1e3:.0f} kB",
        age(now - item.modified),
        item.fault or "verified",
        item.sha256 or "?",
    )
    return tuple(map(one_line, cells))


def name_of(item: "Item") -> str:
    return f"cpu-{item.about.isa}" if item.about else "?"


def compiler_of(identity: str) -> str:
    """The line of a compiler's answers that names its version."""
    return next(iter(identity.splitlines()), "?")


def age(seconds: float) -> str:
    """As a person says it: 5 min, 3 d."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"
