"""Whole numbers on the command line: 1.5 is refused, where the parser would round it to 2."""

import re
from collections.abc import Sequence

from cyclopts import CoercionError, Token

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)


def whole(kind: object, tokens: Sequence[Token]) -> int:
    """The converter of every flag that is a whole number."""
    if not _WHOLE.fullmatch(tokens[0].value):
        raise CoercionError(token=tokens[0], target_type=int)
    return int(tokens[0].value)
