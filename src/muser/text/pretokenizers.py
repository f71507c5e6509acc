"""How text is cut into pieces before the merges: one record per `tokenizer.ggml.pre` value.

The patterns are llama.cpp's, which files are made for; where its family differs from the authors'
own (letter case and combining marks of `llama4`), llama.cpp's is taken. They are written for the
Oniguruma syntax of the `tokenizers` library, whose tables end before Unicode 16: around the 4,382
letters and digits that Unicode 16 added, pieces can differ from llama.cpp's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from muser.errors import ModelError

PRE_KEY = "tokenizer.ggml.pre"

# GPT-2's own pattern without its last branch `\s+`: what no pattern matches is a piece as well.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"

# llama.cpp writes `(?=[\p{L}])([^a-z])` for these: letters other than the ASCII ones of one case.
_NOT_LOWER = r"[\p{L}&&[^a-z]]"
_NOT_UPPER = r"[\p{L}&&[^A-Z]]"
_O200K = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}*{_NOT_UPPER}+{_CONTRACTIONS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_NOT_LOWER}+{_NOT_UPPER}*{_CONTRACTIONS}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_LLAMA3 = "|".join(
    (
        _CONTRACTIONS,
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Patterns applied one after the other; each cuts the pieces that the one before left.

    `whole_words`: a piece that is itself a token becomes it, whatever the merges say.
    `adds_bos`: the default of a file without `tokenizer.ggml.add_bos_token`.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


PRETOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((_GPT2,)),
    "gpt-4o": PreTokenizer((_O200K,)),
    "llama-bpe": PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True),
    "llama4": PreTokenizer((_O200K,)),
    "qwen2": PreTokenizer((_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
}


def find_pretokenizer(name: object) -> PreTokenizer:
    """The record for a file's `tokenizer.ggml.pre`; raises ModelError for a name not listed."""
    known = ", ".join(PRETOKENIZERS)
    if name is None:
        raise ModelError(
            f"This file does not say how its text is split ({PRE_KEY} is missing).",
            f"Convert the model again with a current converter; known values: {known}.",
        )
    rule = PRETOKENIZERS.get(name) if isinstance(name, str) else None
    if rule is None:
        raise ModelError(
            f"The pre-tokenizer {name!r} ({PRE_KEY}) is not supported.",
            f"Use a model whose pre-tokenizer is one of: {known}.",
        )
    return rule
