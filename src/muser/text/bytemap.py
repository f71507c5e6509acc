"""GPT-2's map between bytes and the printable characters that stand for them in token strings.

Bytes 33–126, 161–172 and 174–255 stand for themselves; the other 68, in order, are U+0100 onward
(`bytes_to_unicode` of the GPT-2 release).
"""

from collections.abc import Mapping

_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTABLE)

BYTE_OF: Mapping[str, int] = {
    **{chr(byte): byte for byte in _PRINTABLE},
    **{chr(256 + place): byte for place, byte in enumerate(_OTHERS)},
}
CHAR_OF: Mapping[int, str] = {byte: char for char, byte in BYTE_OF.items()}


def unmapped(text: str) -> bytes:
    """The bytes that a token string stands for; one with foreign characters stands for itself."""
    try:
        return bytes([BYTE_OF[char] for char in text])
    except KeyError:
        return text.encode("utf-8")
