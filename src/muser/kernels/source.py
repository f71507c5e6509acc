"""First stage: the texts that the package ships, and their hash."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

MAIN = "library.c"
TEXTS = (".c", ".h", ".cu", ".cuh")


@dataclass(frozen=True)
class Source:
    """File name to text; `MAIN` includes the others."""

    texts: Mapping[str, bytes]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names and texts in name order."""
        total = hashlib.sha256()
        for name in sorted(self.texts):
            total.update(f"{name}\0{len(self.texts[name])}\0".encode())
            total.update(self.texts[name])
        return total.hexdigest()

    def write_to(self, folder: Path) -> Path:
        """Writes every text into `folder`; the path of the one to compile."""
        for name, text in self.texts.items():
            (folder / name).write_bytes(text)
        return folder / MAIN


def read_source(folder: str = "cpu") -> Source:
    """The texts under `kernels/<folder>`."""
    texts = files("muser.kernels") / folder
    names = [entry.name for entry in texts.iterdir() if entry.name.endswith(TEXTS)]
    return Source({name: (texts / name).read_bytes() for name in names})
