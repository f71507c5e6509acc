"""The question about a model's terms, put to a person once."""

import sys

from muser.cli.console import visible
from muser.errors import FetchError
from muser.weights.catalogue import Entry, Terms
from muser.weights.terms import accept, are_accepted, read_text

YES = ("y", "yes")


def settle(entry: Entry, accepted: bool) -> None:
    """Remember an acceptance given by a flag, else ask where somebody can answer.

    Without a terminal nothing happens here: what fetches the entry says what is missing.
    Raises `FetchError` for any answer but yes.
    """
    terms = entry.terms
    if terms is None or are_accepted(terms):
        return
    if accepted:
        accept(terms)
        _say(f"{terms.title} ({terms.address}): accepted.")
    elif sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        if not _agreed(entry, terms):
            raise FetchError(
                f"{entry.name} was not fetched: its terms were not accepted.",
                "Choose another model, or answer yes.",
            )
        accept(terms)


def _agreed(entry: Entry, terms: Terms) -> bool:
    _say(visible(read_text(terms)))
    _say(f"\n{entry.name} comes under {terms.title}, as above and at {terms.address}.")
    print("Do you accept them? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in YES


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
