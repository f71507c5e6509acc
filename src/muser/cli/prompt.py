"""Where a prompt comes from: the argument, a file, a pipe, or a person at the terminal."""

import sys
from pathlib import Path

from muser.errors import UsageError


def given(prompt: str | None, file: Path | None) -> str | None:
    """The prompt that the command line or a pipe gives; None when a person must be asked.

    `-`, as prompt or file, stands for standard input. One newline at the end of a file or a pipe
    is not part of the prompt. Raises `UsageError` for two sources and for text that is not UTF-8.
    """
    if prompt is not None and file is not None:
        raise UsageError("There is a prompt and also a file of one.", "Leave one of them out.")
    if file is not None and str(file) != "-":
        return _trimmed(_bytes_of(file), str(file))
    if prompt is not None and prompt != "-":
        return checked(prompt, "The prompt")
    if prompt is None and file is None and _is_terminal():
        return None
    return _trimmed(piped(), "Standard input")


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def asked() -> str:
    """One line from the person at the terminal."""
    print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line.strip():
        raise UsageError("There is no prompt.", 'Give one: muser run "The capital of France is".')
    return checked(line.removesuffix("\n"), "The prompt")


def piped() -> bytes:
    """All of standard input; empty when there is none."""
    return b"" if sys.stdin is None else sys.stdin.buffer.read()


def decoded(data: bytes, source: str) -> str:
    """Bytes as text. Raises `UsageError` when they are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise UsageError(
            f"{source} is not UTF-8 at byte {problem.start}.", "Convert it to UTF-8."
        ) from None


def checked(text: str, source: str) -> str:
    """An argument's text: bytes that are not UTF-8 arrive as lone surrogates. As `decoded`."""
    return decoded(text.encode("utf-8", "surrogateescape"), source)


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise UsageError(
            f"{file} cannot be read: {problem.strerror or problem}.",
            "Give -f a text file that you may read, or - for standard input.",
        ) from None


def _trimmed(data: bytes, source: str) -> str:
    text = decoded(data, source).removesuffix("\n").removesuffix("\r")
    if not text:
        raise UsageError(
            f"{source} holds no prompt.", 'Give one: muser run "The capital of France is".'
        )
    return text
