"""What stands beside a compiled library: its hash, and what it was made from.

`<key>.json` beside `<key>.so`: one JSON object of texts, the fields of `About` and `sha256`.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields

CONTRACT = "exact-0"
"""The arithmetic that the texts keep: `docs/arithmetic.md`, version 0."""
CARD = "nvidia"
"""The machine of CUDA libraries."""


@dataclass(frozen=True, slots=True)
class About:
    """`compiler` is its identity, `source` the hash of the texts, `flags` one text."""

    isa: str
    contract: str
    compiler: str
    machine: str
    flags: str
    source: str

    @property
    def library(self) -> str:
        """The library's name in records."""
        return f"{'cuda' if self.machine == CARD else 'cpu'}-{self.isa}"

    @property
    def key(self) -> str:
        """A hash over everything that decides a library's bytes."""
        return hashlib.sha256("\0".join(asdict(self).values()).encode()).hexdigest()[:32]


def written(about: About, sha256: str) -> str:
    """The text of the file."""
    return json.dumps({"sha256": sha256, **asdict(about)}, indent=1) + "\n"


def read(raw: bytes) -> tuple[str, About]:
    """Hash and origin. Raises `ValueError` for anything but such a text."""
    try:
        record = json.loads(raw)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    names = {"sha256"} | {field.name for field in fields(About)}
    if not isinstance(record, dict) or set(record) != names:
        raise ValueError("not the fields of a library's record")
    if not all(isinstance(value, str) for value in record.values()):
        raise ValueError("a field that is no text")
    sha256 = record.pop("sha256")
    return sha256, About(**record)
