"""The model files that the comparisons run on; makes the quantised ones that nobody publishes.

    python bench/models.py [NAME ...]

Without names, all are brought: fetched, or made from a fetched one by `llama-quantize` of the clang
build (`bench/peers/llama_clang.py install`). They lie in Muser's models folder. Every path is
printed with its SHA-256, which is compared with the recorded one.
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peers import llama_clang
from peers.building import PeerError, call, told

from muser import places
from muser.errors import MuserError
from muser.weights import obtain


@dataclass(frozen=True, slots=True)
class Quantised:
    """A file made from a catalogue model. `sha256` is what b11434 by clang 19 made of it."""

    source: str
    type: str
    file: str
    sha256: str


MADE: Mapping[str, Quantised] = {
    "smollm2-135m-q8_0": Quantised(
        source="smollm2-135m",
        type="Q8_0",
        file="SmolLM2-135M-Instruct.Q8_0.gguf",
        sha256="7b46609d11703c058397e5cfe4cc6e4b2508cb1eb4c80ddc472a5d421fbdb508",
    ),
}
FETCHED = ("smollm2-135m", "gemma3-270m")
NAMES = (*FETCHED, *MADE)


def bring(name: str) -> Path:
    """The file of a name, fetched or made unless it is here.

    Raises `PeerError` where it cannot be made or is not the recorded one, `MuserError` where it
    cannot be fetched.
    """
    if name not in MADE:
        return Path(obtain(name))
    wanted = MADE[name]
    path = places.models() / wanted.file
    if not path.exists():
        _make(wanted, path)
    return path


def _make(wanted: Quantised, path: Path) -> None:
    """Quantise into a draft, compare, then name it."""
    tool = llama_clang.where() / "llama-quantize"
    source = obtain(wanted.source)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    told(f"making {path.name} from {Path(source).name}")
    threads = str(os.cpu_count() or 1)
    # The source is quantised already; the tool wants to be told that this is meant.
    flags = ["--allow-requantize", str(source), str(draft), wanted.type, threads]
    try:
        call("llama-quantize", [tool, *flags])
        found = sha256(draft)
        if found != wanted.sha256:
            raise PeerError(
                f"{path.name} came out with SHA-256 {found}, not the recorded {wanted.sha256}:"
                " another llama.cpp or another compiler made it."
            )
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all without"
    )
    names = parser.parse_args().name or NAMES
    if unknown := set(names).difference(NAMES):
        parser.error(f"no model is named {', '.join(sorted(unknown))}")
    try:
        for name in names:
            path = bring(name)
            print(f"{sha256(path)}  {path}", flush=True)
    except (PeerError, MuserError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
