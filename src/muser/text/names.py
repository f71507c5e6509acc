"""Names of special tokens, found in a text before anything else is done with it."""

from collections.abc import Iterator, Mapping

_TAKEN = "\ud800"  # stands where a name was found: no text and no name holds a lone surrogate
_STEM = 4  # characters of a name looked for before the name itself; most are absent at once


class Names:
    """Names of special tokens, found in a text the longest first, as llama.cpp does."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self._stems: dict[str, list[tuple[int, int, str]]] = {}
        for name, token in names.items():
            if name:
                entry = (-len(name.encode()), token, name)
                self._stems.setdefault(name[:_STEM], []).append(entry)

    def found(self, text: str) -> list[tuple[int, int, int]]:
        """Start, end and token of each, by start."""
        taken: list[tuple[int, int, int]] = []
        near = (group for stem, group in self._stems.items() if stem in text)
        for _, token, name in sorted(entry for group in near for entry in group):
            at = text.find(name)
            if at < 0:
                continue
            while at >= 0:
                taken.append((at, at + len(name), token))
                at = text.find(name, at + len(name))
            text = text.replace(name, _TAKEN * len(name))
        return sorted(taken)


def partition(text: str, names: Names) -> Iterator[str | int]:
    """The text's parts and the special tokens between them, in order; no part is empty."""
    done = 0
    for start, end, token in names.found(text):
        if done < start:
            yield text[done:start]
        yield token
        done = end
    if done < len(text):
        yield text[done:]
