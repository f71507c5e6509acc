"""Text and tokens: the tokenizer of a file, streaming, stop strings, the chat template.

Importing this costs little: the tokenizer library and the template engine load on first use.
"""

from muser.text.bytemap import CHAR_OF
from muser.text.stream import StopStrings, StreamDecoder
from muser.text.template import ChatTemplate
from muser.text.tokenizer import Tokenizer

__all__ = ["CHAR_OF", "ChatTemplate", "StopStrings", "StreamDecoder", "Tokenizer"]
