"""The tokenizer of a GGUF file: text to ids and ids to bytes, from its metadata alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from muser.errors import FormatError, ModelError
from muser.text.bytemap import unmapped
from muser.text.digest import metadata_digest
from muser.text.ending import stop_ids
from muser.text.pieces import PREFIX_KEY, PieceRule, build_pieces, unspaced
from muser.text.pretokenizers import PRE_KEY, PreTokenizer, find_pretokenizer
from muser.text.vocabulary import Vocabulary

MODEL_KEY = "tokenizer.ggml.model"
ADD_BOS_KEY = "tokenizer.ggml.add_bos_token"
_PIECE_IDS = {"bos": 1, "eos": 2}  # llama.cpp's for a SentencePiece file without the keys


class Encoder(Protocol):
    """Text to ids; each kind of tokenizer has its own."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of `text`; names of special tokens become them if `special`."""


@dataclass(frozen=True)
class Tokenizer:
    """Byte-level BPE or SentencePiece with the tokens, merges or scores, and flags of one file.

    Reading it is cheap; an encoder is built when text is first encoded. One tokenizer may serve
    several threads. `adds_bos` is the file's own wish.
    """

    metadata: Mapping[str, Any]
    vocabulary: Vocabulary
    rule: PreTokenizer | PieceRule
    bos_id: int | None
    eos_id: int | None
    stop_ids: frozenset[int]
    adds_bos: bool

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Read the `tokenizer.*` keys; no tensor is needed.

        Raises ModelError for a kind of tokenizer that is not supported, FormatError for keys that
        contradict one another.
        """
        rule = _read_rule(metadata)
        has_pieces = isinstance(rule, PieceRule)
        vocabulary = Vocabulary.from_metadata(metadata, unspaced if has_pieces else unmapped)
        defaults = _PIECE_IDS if has_pieces else {}
        bos, eos, eot = (
            _read_id(metadata, name, len(vocabulary), defaults.get(name))
            for name in ("bos", "eos", "eot")
        )
        adds_bos = _read_flag(metadata, ADD_BOS_KEY, rule.adds_bos)
        if adds_bos and bos is None:
            raise FormatError(
                "This file asks for a first token but names none (tokenizer.ggml.bos_token_id).",
                "Convert the model again.",
            )
        stops = stop_ids(vocabulary.specials, (eos, eot))
        return cls(metadata, vocabulary, rule, bos, eos, stops, adds_bos)

    @property
    def size(self) -> int:
        """How many tokens there are; ids run from 0 to size − 1."""
        return len(self.vocabulary)

    @cached_property
    def metadata_digest(self) -> str:
        """What identifies this tokenizer: see `muser.text.digest`."""
        return metadata_digest(self.metadata)

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Ids of `text`.

        `special`: the names of special tokens inside the text become those tokens; else they are
        text like any other, except that SentencePiece has user-defined tokens for text (line
        feeds, tags). `bos`: put the first token in front, None for what the file wants; it
        is never put there twice. Raises UsageError for a character that has no token.
        """
        ids = self._encoder.encode(text, special=special)
        if self.adds_bos if bos is None else bos:
            if self.bos_id is None:
                raise ModelError(
                    "This model has no first token (tokenizer.ggml.bos_token_id is missing).",
                    "Encode without it.",
                )
            if ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to a text, not always whole characters; its name if it is special."""
        return self.vocabulary.token_bytes(token)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`, with U+FFFD for what is not UTF-8.

        Control tokens are left out unless `special`, then they appear by name.
        """
        return b"".join(self.text_bytes(i, special=special) for i in ids).decode("utf-8", "replace")

    def text_bytes(self, token: int, *, special: bool = False) -> bytes:
        """What `decode` makes of one token: nothing for a control token unless `special`."""
        if not special and self.vocabulary.is_control(token):
            return b""
        return self.token_bytes(token)

    @cached_property
    def _encoder(self) -> Encoder:
        if isinstance(self.rule, PieceRule):
            return build_pieces(self.metadata, self.vocabulary, self.rule)
        from muser.text.bpe import BpeEncoder  # costly import, needed by few

        return BpeEncoder(self.metadata, self.vocabulary, self.rule)


def _read_rule(metadata: Mapping[str, Any]) -> PreTokenizer | PieceRule:
    model = metadata.get(MODEL_KEY)
    if isinstance(model, str) and model == "gpt2":
        return find_pretokenizer(metadata.get(PRE_KEY))
    if isinstance(model, str) and model == "llama":
        return PieceRule(_read_flag(metadata, PREFIX_KEY, True))
    what = "is missing" if model is None else f"is {model!r}"
    raise ModelError(
        f"This file's kind of tokenizer is not supported ({MODEL_KEY} {what}).",
        "Use a model with a byte-level BPE tokenizer (gpt2) or SentencePiece's (llama).",
    )


def _read_id(metadata: Mapping[str, Any], name: str, size: int, default: int | None) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None if default is None or default >= size else default
    if type(value) is not int or not 0 <= value < size:
        raise FormatError(
            f"{key} is {value!r}, not a token of this file (0 to {size - 1}).",
            "Fetch the file again or convert the model again.",
        )
    return value


def _read_flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if type(value) is not bool:
        raise FormatError(f"{key} is {value!r}, not a bool.", "Convert the model again.")
    return value
