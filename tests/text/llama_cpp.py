"""llama.cpp's own tokenizer, through the C functions that the `xllamacpp` wheel exports."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# `llama_model_params` is passed by value; more bytes than it has do no harm, and only its first
# flag is set here. The offset is checked in `open_vocabulary`: without it no tensors would load.
_PARAMS_BYTES = 256
_VOCAB_ONLY = 72
_ROOM = 1 << 16


class _Params(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * _PARAMS_BYTES)]


class LlamaVocabulary:
    """The vocabulary of an open model."""

    def __init__(self, library: Any, vocabulary: int) -> None:
        self._library = library
        self._vocabulary = ctypes.c_void_p(vocabulary)
        self.size: int = library.llama_vocab_n_tokens(self._vocabulary)

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        raw = text.encode()
        ids = (ctypes.c_int32 * _ROOM)()
        count = self._library.llama_tokenize(
            self._vocabulary, raw, len(raw), ids, _ROOM, bos, special
        )
        assert 0 <= count <= _ROOM
        return list(ids[:count])

    def token_bytes(self, token: int) -> bytes:
        piece = ctypes.create_string_buffer(_ROOM)
        count = self._library.llama_token_to_piece(self._vocabulary, token, piece, _ROOM, 0, True)
        assert 0 <= count <= _ROOM
        return piece.raw[:count]

    def stop_ids(self) -> frozenset[int]:
        return frozenset(
            i for i in range(self.size) if self._library.llama_vocab_is_eog(self._vocabulary, i)
        )


@contextmanager
def open_vocabulary(path: Path) -> Iterator[LlamaVocabulary]:
    """Open the vocabulary of a GGUF file; tensors are neither needed nor read."""
    library = _open_library()
    params = library.llama_model_default_params()
    assert params.bytes[_VOCAB_ONLY] == 0
    params.bytes[_VOCAB_ONLY] = 1
    model = library.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp cannot open {path}"
    try:
        yield LlamaVocabulary(library, library.llama_model_get_vocab(model))
    finally:
        library.llama_model_free(model)


def _open_library() -> Any:
    from xllamacpp import xllamacpp

    library = ctypes.CDLL(xllamacpp.__file__)
    pointer, number, flag = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
    numbers = ctypes.POINTER(number)
    text = ctypes.c_char_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "llama_model_default_params": (_Params, []),
        "llama_model_load_from_file": (pointer, [text, _Params]),
        "llama_model_free": (None, [pointer]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (number, [pointer]),
        "llama_vocab_is_eog": (flag, [pointer, number]),
        "llama_tokenize": (number, [pointer, text, number, numbers, number, flag, flag]),
        "llama_token_to_piece": (number, [pointer, number, text, number, number, flag]),
        "llama_log_set": (None, [pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(_SILENT, None)
    return library


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _SILENT(level: int, text: bytes, data: int) -> None:  # noqa: N802
    """Drop llama.cpp's log lines."""
