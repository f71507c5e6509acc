"""Records: one JSON file a run, named by time and content, written once and never again."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from muser.errors import FormatError, MuserError, StorageError

SCHEMA = "muser.bench.v1"
HASH_LETTERS = 12
LARGEST = 16 << 20  # bytes of a record that is read


def canonical(record: Mapping[str, Any]) -> bytes:
    """Sorted keys, one space, ASCII, a line feed at the end; no NaN."""
    return json.dumps(record, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def file_name(record: Mapping[str, Any], data: bytes) -> str:
    """`20260131T120000Z-decode-0123456789ab.json`."""
    moment = datetime.fromisoformat(record["at"]).strftime("%Y%m%dT%H%M%SZ")
    return f"{moment}-{record['kind']}-{hashlib.sha256(data).hexdigest()[:HASH_LETTERS]}.json"


def write(record: Mapping[str, Any], folder: Path) -> Path:
    """Put a record into `folder`, whole or not at all. Raises `StorageError` if it is there."""
    data = canonical(record)
    path = folder / file_name(record, data)
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{path.name}.{os.getpid()}"
    with draft.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)  # never replaces, where a rename would
    except FileExistsError:
        raise StorageError(
            f"The record {path.name} is there already.", "Records are never replaced."
        ) from None
    finally:
        draft.unlink()
    return path


def failure(problem: MuserError, sides: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of a run that failed, and of the sides that had begun."""
    return {
        "code": problem.code,
        "sentence": problem.sentence,
        "remedy": problem.remedy,
        "sides": dict(sides),
    }


def require(record: Mapping[str, Any]) -> None:
    """Raises the `MuserError` that a run failed of; its record is kept all the same."""
    if "failed" in record:
        failed = record["failed"]
        kinds = {kind.code: kind for kind in _kinds_of(MuserError)}
        raise kinds.get(failed["code"], MuserError)(failed["sentence"], failed["remedy"])


def _kinds_of(error: type[MuserError]) -> Iterator[type[MuserError]]:
    """The kinds of an error, and theirs."""
    for kind in error.__subclasses__():
        yield kind
        yield from _kinds_of(kind)


def read(path: Path) -> dict[str, Any]:
    """A record whose name fits its content. Raises `FormatError` for anything else."""
    if path.stat().st_size > LARGEST:
        raise _broken(path, "is larger than records are")
    data = path.read_bytes()
    try:
        record = json.loads(data)
        fits = record["schema"] == SCHEMA and file_name(record, data) == path.name
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _broken(path, "is no record") from None
    if not fits:
        raise _broken(path, f"is not what its name says, or not of {SCHEMA}")
    found: dict[str, Any] = record
    return found


def read_all(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """All records of a folder in the order of their names, which is that of time."""
    return [(path, read(path)) for path in sorted(folder.glob("*.json"))]


def _broken(path: Path, what: str) -> FormatError:
    return FormatError(f"{path} {what}.", "Records are never edited: put the original back.")
