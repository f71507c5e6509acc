"""The chat template of a file: messages to the text that the model was trained on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from typing import Any

from muser.errors import FormatError
from muser.text.sandbox import Sandbox
from muser.text.tokenizer import Tokenizer

TEMPLATE_KEY = "tokenizer.chat_template"

_NAMED_TOKENS = ("bos", "eos", "unknown", "padding")
_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja text and the special tokens that it may name, rendered in a sandbox.

    The text begins with the name of the first token where the template writes it; encoding with
    `special=True` then puts no second one in front.
    """

    source: str
    tokens: Mapping[str, str]
    sandbox: Sandbox = field(default_factory=Sandbox, compare=False, repr=False)

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], tokenizer: Tokenizer
    ) -> "ChatTemplate | None":
        """The template of `metadata`, None if it has none; starts nothing."""
        source = metadata.get(TEMPLATE_KEY)
        if source is None:
            return None
        if not isinstance(source, str):
            raise FormatError(f"{TEMPLATE_KEY} is not a text.", "Convert the model again.")
        return cls(source, _named_tokens(metadata, tokenizer))

    @cached_property
    def sha256(self) -> str:
        """Of the template's bytes, 64 hexadecimal digits."""
        return sha256(self.source.encode("utf-8")).hexdigest()

    def start(self) -> None:
        """Start the sandbox early, beside other work; rendering does it if nobody did."""
        self.sandbox.start()

    def close(self) -> None:
        """End the sandbox; rendering starts it again."""
        self.sandbox.close()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, mappings with at least `role` and `content`.

        `now` is the time that a template is told when it asks for the date (this moment, local
        time); `variables` are the template's own, for example `tools`, `current_date` or
        `reasoning_strength`. Raises UsageError when the template refuses the messages, ModelError
        when it fails, LimitError when it had to be stopped.
        """
        given = {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self.tokens,
            **variables,
        }
        return self.sandbox.render(self.source, given, now or datetime.now())


def _named_tokens(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    tokens = {}
    for name, variable in zip(_NAMED_TOKENS, _VARIABLES, strict=True):
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(token) is int and 0 <= token < tokenizer.size:
            tokens[variable] = tokenizer.vocabulary.texts[token]
    return tokens
