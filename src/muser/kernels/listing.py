"""What lies on a shelf, and how it is cleared: for people, not for loading."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from muser.kernels.about import About, read
from muser.kernels.trust import DistrustError, check_folder, read_trusted
from muser.locking import held

_KEY = r"[0-9a-f]{32}"
_LIBRARY = re.compile(rf"{_KEY}\.so", re.ASCII)
# Also the names of hashes and of half-built libraries that earlier versions of this shelf used.
_OURS = re.compile(
    rf"{_KEY}\.(so|json|sha256)|[a-z]+-[0-9a-f-]{{8,128}}\.note|\.[a-z0-9_]{{8}}\.part"
    rf"|\.{_KEY}-[a-z0-9_]{{8}}\.so",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Item:
    """One library: `fault` says why it would be compiled again, None for a verified one.

    `size` in bytes, `modified` in seconds since 1970; `sha256` of what is there, None if unread.
    """

    key: str
    size: int
    modified: float
    sha256: str | None
    about: About | None
    fault: str | None


def items(folder: Path) -> tuple[Item, ...]:
    """The libraries of a shelf, each verified now, by instruction set and age."""
    found = [_item(path) for path in plain_files(folder) if _LIBRARY.fullmatch(path.name)]
    return tuple(
        sorted(found, key=lambda item: (item.about.isa if item.about else "~", -item.modified))
    )


def distrust(folder: Path) -> str | None:
    """Why a folder's libraries are not used, completing a sentence about it; None if they are."""
    try:
        check_folder(folder)
    except DistrustError as problem:
        return str(problem)
    except OSError:
        return None
    return None


def clear(folder: Path) -> tuple[int, int]:
    """Removes libraries and all that stands beside them, and nothing else.

    How many libraries there were, and how many bytes of all files. Raises `OSError`.
    """
    count = size = 0
    with ExitStack() as stack:
        if folder.is_dir():
            stack.enter_context(held(folder / ".lock", lambda holder: None))
        for path in list(plain_files(folder)):
            if not _OURS.fullmatch(path.name):
                continue
            about = path.lstat()
            path.unlink()
            count += bool(_LIBRARY.fullmatch(path.name))
            size += about.st_size
    return count, size


def plain_files(folder: Path) -> Iterator[Path]:
    """Plain files, and links, which are themselves removed and never followed."""
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from (path for path in entries if path.is_symlink() or path.is_file())


def _item(path: Path) -> Item:
    about = path.lstat()
    sha256, origin, fault = None, None, None
    try:
        sha256 = hashlib.sha256(read_trusted(path)).hexdigest()
        expected, origin = read(read_trusted(path.with_suffix(".json")))
        fault = None if sha256 == expected else "corrupt: its hash is another"
    except FileNotFoundError:
        fault = "corrupt: it has no record"
    except (OSError, ValueError) as problem:
        fault = f"corrupt: {problem}"
    except DistrustError as problem:
        fault = f"not used: it {problem}"
    return Item(path.stem, about.st_size, about.st_mtime, sha256, origin, fault)
