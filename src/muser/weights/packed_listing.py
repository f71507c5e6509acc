"""What lies in the folder of packed weights, and how it is cleared: for people, not for loading."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from muser.errors import MuserError
from muser.formats import GgufFile
from muser.kernels.listing import plain_files
from muser.kernels.trust import DistrustError, open_trusted
from muser.weights.packed_file import (
    LAYOUT,
    NAME,
    UNFINISHED,
    OtherVersionError,
    Plan,
    Record,
    about,
    digest,
    digest_of,
)
from muser.weights.packing import alone


@dataclass(frozen=True, slots=True)
class PackedItem:
    """One file: `size` in bytes, `modified` in seconds since 1970.

    `model` is where its model lay when it was packed. `fault` says why it would be made again,
    `stale` why nobody will ask for it; both None for one that is in use.
    """

    path: Path
    size: int
    modified: float
    layout: str | None = None
    model: Path | None = None
    fault: str | None = None
    stale: str | None = None

    @property
    def state(self) -> str:
        return self.fault or self.stale or "in use"


def items(folder: Path) -> tuple[PackedItem, ...]:
    """The files of a folder, the newest first; of each, head and record alone are read."""
    return tuple(sorted(map(_item, _ours(folder)), key=lambda item: -item.modified))


def verified(item: PackedItem) -> PackedItem:
    """The same, with a fault if any panel, or any tensor of its model, is not what it was when it
    was packed: all bytes are read."""
    if item.fault or item.stale:
        return item
    try:
        with open_trusted(item.path) as file:
            plan, _ = Plan.read(file)
            record = Record.read(file, plan)
            fault = _wrong_panels(file, plan, record) or _wrong_model(item, record)
    except (OSError, ValueError, DistrustError) as problem:
        fault = str(problem)
    return replace(item, fault=fault)


def clear(folder: Path) -> tuple[int, int]:
    """Removes packed weights, whole and unfinished, and nothing else.

    How many whole ones there were, and how many bytes of all. Raises `OSError`.
    """
    count = size = 0
    if not folder.is_dir():
        return count, size
    with alone(folder):
        for path in list(_ours(folder)):
            size += path.lstat().st_size
            path.unlink()
            count += _is_whole(path)
    return count, size


def _ours(folder: Path) -> Iterator[Path]:
    for path in plain_files(folder):
        if NAME.fullmatch(path.name) or UNFINISHED.fullmatch(path.name):
            yield path


def _is_whole(path: Path) -> bool:
    return NAME.fullmatch(path.name) is not None


def _item(path: Path) -> PackedItem:
    found = path.lstat()
    item = PackedItem(path, found.st_size, found.st_mtime)
    if not _is_whole(path):
        return replace(item, stale="unfinished: being packed now, or left behind")
    try:
        with open_trusted(path) as file:
            plan, source = Plan.read(file)
            item = replace(item, layout=LAYOUT)
            if f"{plan.key}.packed" != path.name or os.fstat(file.fileno()).st_size <= plan.size:
                raise ValueError("damaged: its head is another's, or it is cut off")
            record = Record.read(file, plan)
    except OtherVersionError as problem:
        return replace(item, layout=problem.layout, stale=f"stale: {problem}")
    except DistrustError as problem:
        return replace(item, fault=f"not used: it {problem}")
    except (OSError, ValueError) as problem:
        return replace(item, fault=str(problem))
    model = Path(record.model)
    return replace(item, model=model, stale=_stale(model, source))


def _stale(model: Path, source: dict[str, int]) -> str | None:
    try:
        found = about(model.stat())
    except OSError:
        return "stale: its model is gone from there"
    return None if found == source else "stale: another file has its model's place"


def _wrong_panels(file: BinaryIO, plan: Plan, record: Record) -> str | None:
    for each, at in zip(plan.panels, plan.offsets, strict=True):
        file.seek(at)
        if digest_of(file, each.size) != record.digests[each.name][1]:
            return f"damaged: its panels of {each.name} are not what was put there"
    return None


def _wrong_model(item: PackedItem, record: Record) -> str | None:
    assert item.model is not None
    try:
        with GgufFile.open(item.model) as model:
            for name, (of_model, _) in record.digests.items():
                if digest(model.raw(name)) != of_model:
                    return f"of another model: {name} was other weights"
    except (MuserError, KeyError):
        return "of another model: the file has other tensors by now"
    return None
