"""jinja2 in this process, set up as transformers does; a `generation` block is only a scope."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Refusal(Exception):
    """Raised by `raise_exception`."""


def render_directly(source: str, variables: Mapping[str, Any], now: datetime) -> str:
    """The text, `refused: …` with the template's words less their last dots, or `failed`."""
    try:
        return compiled(source, now).render(**variables)
    except Refusal as error:
        return f"refused: {error}".rstrip(".")
    except (TemplateError, TypeError):
        return "failed"


@lru_cache
def compiled(source: str, now: datetime) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = now.strftime
    # A block without meaning of its own takes the place of the one that jinja2 does not know.
    source = re.sub(r"\{%(-?) generation (-?)%\}", r"{%\1 if true \2%}", source)
    source = re.sub(r"\{%(-?) endgeneration (-?)%\}", r"{%\1 endif \2%}", source)
    return environment.from_string(source)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def refuse(message: str) -> None:
    raise Refusal(message)
