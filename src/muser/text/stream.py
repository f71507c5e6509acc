"""Text as it is generated: whole characters, and stop strings that span tokens."""

import codecs
from collections.abc import Iterable

from muser.text.tokenizer import Tokenizer


class StreamDecoder:
    """Ids in, text out, never half a character.

    All that `feed` returned, and then `finish`, is `tokenizer.decode` of the same ids: bytes wait
    until their character is whole, and bytes that can no longer become one are U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that `token` completes; empty when a character is still open."""
        return self._decoder.decode(self._tokenizer.text_bytes(token, special=self._special))

    def finish(self) -> str:
        """U+FFFD for a character that stayed open, else nothing; then ready for another text."""
        rest = self._decoder.decode(b"", True)
        self._decoder.reset()
        return rest


class StopStrings:
    """Holds back whatever may be the start of a stop string, and cuts the text before one.

    The stop that is complete first wins, of two that end together the longer one; so the outcome
    does not depend on how the text was cut into tokens. Empty stops are ignored.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(sorted({stop for stop in stops if stop}, key=len, reverse=True))
        self._held = ""
        self.matched: str | None = None

    @property
    def hit(self) -> bool:
        """Whether a stop string was seen; nothing is returned after it."""
        return self.matched is not None

    def feed(self, text: str) -> str:
        """The text that is certain not to belong to a stop string."""
        if self.hit or not self._stops:
            return "" if self.hit else text
        held = self._held + text
        found = [(held.find(stop) + len(stop), stop) for stop in self._stops if stop in held]
        if found:
            end, self.matched = min(found, key=lambda item: item[0])
            self._held = ""
            return held[: end - len(self.matched)]
        keep = self._open_start(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """What was held back and did not become a stop string."""
        rest, self._held = self._held, ""
        return rest

    def _open_start(self, text: str) -> int:
        """The longest end of `text` that begins one of the stops."""
        for size in range(min(len(self._stops[0]) - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
