"""What llama.cpp says of itself and of where it runs; needs Python and nothing else."""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

DEVICE = re.compile(r"\busing device (\S+) \((.*?)\)")
OFFLOADED = re.compile(r"\boffloaded (\d+)/(\d+) layers")
CARD_LIBRARY = re.compile(r"/lib(cuda|cudart|cublas|cublasLt)\.so[.0-9]*$")


def hashes(folder: Path) -> dict[str, str]:
    """The libraries of a folder, links left out, by SHA-256."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink()]
    libraries = [path for path in files if {".so", ".dylib", ".dll"} & set(path.suffixes)]
    return {path.name: sha256(path) for path in libraries}


def card_libraries(maps: Path = Path("/proc/self/maps")) -> dict[str, str]:
    """CUDA's libraries that this process has loaded, by SHA-256; none where no card is used."""
    if not maps.is_file():
        return {}
    named = {line.split(maxsplit=5)[5].strip() for line in maps.open() if "/" in line}
    found = [Path(name) for name in sorted(named) if CARD_LIBRARY.search(name)]
    return {path.name: sha256(path) for path in found if path.is_file()}


def on_cards(said: Sequence[str]) -> dict[str, Any]:
    """The cards that llama.cpp said it uses, and how many of how many layers lie there; nothing
    where it said nothing of cards.
    """
    text = "\n".join(said)
    cards = [{"device": device, "name": name} for device, name in DEVICE.findall(text)]
    layers = [{"layers": int(some), "of": int(all_)} for some, all_ in OFFLOADED.findall(text)]
    return {**({"cards": cards} if cards else {}), **({"offloaded": layers[-1]} if layers else {})}


@cache  # cuBLAS is half a gigabyte
def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def instruction_sets(system: str) -> list[str]:
    """llama.cpp's own line, `CPU : AVX = 1 | AMX_INT8 = 1 | …`, as the names that are on."""
    words = system.replace(":", "|").split("|")
    return [word.rpartition("=")[0].strip() for word in words if word.strip().endswith("= 1")]
