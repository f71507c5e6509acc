"""`muser kernels`: the compiled libraries on disk, and the weights that are packed for them."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from muser.cli.console import one_line
from muser.cli.model_list import aligned
from muser.cli.progress import narrated
from muser.errors import FormatError, StorageError

if TYPE_CHECKING:
    from muser.kernels.listing import Item
    from muser.weights.packed_listing import PackedItem

HEAD = ("NAME", "CONTRACT", "COMPILER", "SIZE", "AGE", "STATE", "SHA-256")
PACKED_HEAD = ("PACKED FOR", "LAYOUT", "SIZE", "AGE", "STATE")
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def kernels_app() -> App:
    """The commands of `muser kernels`."""
    app = App(
        name="kernels", help="List, build, verify and clear compiled kernels and packed weights."
    )
    app.command(list_kernels, name="list")
    app.command(build)
    app.command(verify)
    app.command(clear)
    return app


JsonFlag = Annotated[
    bool, Parameter(help="Print one JSON record.", negative=(), show_default=False)
]


def list_kernels(*, json: JsonFlag = False) -> None:
    """List the compiled libraries, each verified against its hash now, and the packed weights."""
    from muser import places
    from muser.kernels.listing import items
    from muser.weights.packed_listing import items as packed_items

    _show(items(places.libraries()), packed_items(places.packed()), json)


def verify(*, json: JsonFlag = False) -> None:
    """Read every byte of libraries, packed weights and their models, and compare all hashes."""
    from muser import places
    from muser.kernels.listing import items
    from muser.weights.packed_listing import items as packed_items
    from muser.weights.packed_listing import verified

    libraries = items(places.libraries())
    packed = tuple(map(verified, packed_items(places.packed())))
    _show(libraries, packed, json)
    states = [item.fault for item in libraries] + [item.fault for item in packed]
    faults = sum(fault is not None for fault in states)
    if faults:
        raise FormatError(
            f"{faults} of {len(states)} files are not what was put there.",
            "Remove them with muser kernels clear; what is needed is made again.",
        )


def _show(libraries: Sequence["Item"], packed: Sequence["PackedItem"], json: bool) -> None:
    from muser import places

    now = time.time()
    if json:
        import json as codec

        record = {
            "folder": str(places.libraries()),
            "libraries": [_record(item, now) for item in libraries],
            "packed_folder": str(places.packed()),
            "packed": [_packed_record(item, now) for item in packed],
        }
        print(codec.dumps(record))
        return
    if libraries:
        print(aligned([HEAD, *(_row(item, now) for item in libraries)]) + "\n")
    if packed:
        print(aligned([PACKED_HEAD, *(_packed_row(item, now) for item in packed)]) + "\n")
    print(_folder("Libraries folder", places.libraries()))
    print(_folder("Packed weights folder", places.packed()))


def _folder(name: str, path: Path) -> str:
    from muser.kernels.listing import distrust

    reason = distrust(path)
    return f"{name}: {one_line(str(path))}" + (f" ({reason}: not used)" * bool(reason))


def build(
    *,
    isa: Annotated[
        tuple[str, ...],
        Parameter(
            help="Only for this instruction set; repeatable.", negative=(), show_default=False
        ),
    ] = (),
) -> None:
    """Compile the CPU's kernels for all instruction sets of this machine and prove them."""
    from muser import places
    from muser.devices import CpuDevice
    from muser.kernels import Shelf, choose_library, supported_isas

    folder = places.libraries()
    shelf, made = Shelf(folder), []
    with narrated():
        wanted = isa or supported_isas(choose_library(shelf, "c"))  # plain C is one of them
        for name in wanted:
            library = CpuDevice(threads=1, isa=name, shelf=shelf).library
            print(f"{library.name}  {library.sha256}", flush=True)
            made.append(library)
    _require_kept(folder, {library.name: library.sha256 for library in made})


def _require_kept(folder: Path, made: Mapping[str, str]) -> None:
    """Raises `StorageError` for libraries that the next start will not find."""
    from muser.kernels.listing import distrust, items

    kept = {item.sha256 for item in items(folder) if not item.fault and not distrust(folder)}
    lost = [name for name, sha256 in made.items() if sha256 not in kept]
    if lost:
        raise StorageError(
            f"{folder} has not kept {', '.join(lost)}: compiled and proved, they are gone again.",
            "Give yourself a folder that can be written, or name another with MUSER_HOME.",
        )


def clear(
    what: Annotated[
        Literal["all", "libraries", "packed"],
        Parameter(help="`libraries`, `packed` weights, or both."),
    ] = "all",
    /,
) -> None:
    """Remove compiled libraries and packed weights; they are made again when they are needed."""
    from muser import places
    from muser.kernels.listing import clear as clear_shelf
    from muser.weights.packed_listing import clear as clear_packed

    with narrated():
        if what != "packed":
            count, size = clear_shelf(places.libraries())
            _removed(count, "library", "libraries", size, places.libraries())
        if what != "libraries":
            count, size = clear_packed(places.packed())
            _removed(count, "packed file", "packed files", size, places.packed())


def _removed(count: int, one: str, many: str, size: int, folder: Path) -> None:
    noun = one if count == 1 else many
    print(f"Removed {count} {noun}, {size:,} bytes in all, from {one_line(str(folder))}")


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


def _packed_record(item: "PackedItem", now: float) -> dict[str, Any]:
    return {
        "file": item.path.name,
        "model": None if item.model is None else str(item.model),
        "layout": item.layout,
        "bytes": item.size,
        "age_s": round(now - item.modified, 1),
        "state": item.state,
    }


def _packed_row(item: "PackedItem", now: float) -> tuple[str, ...]:
    cells = (
        f"? ({item.path.name})" if item.model is None else str(item.model),
        item.layout or "?",
        f"{item.size / 1e6:.0f} MB",
        age(now - item.modified),
        item.state,
    )
    return tuple(map(one_line, cells))


def name_of(item: "Item") -> str:
    return item.about.library if item.about else "?"


def compiler_of(identity: str) -> str:
    """The line of a compiler's answers that names its version."""
    return next(iter(identity.splitlines()), "?")


def age(seconds: float) -> str:
    """As a person says it: 5 min, 3 d."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"
