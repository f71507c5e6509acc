"""What the parser makes of hyphens and of words too many, set right before and after it."""

from collections.abc import Sequence

from cyclopts.exceptions import CycloptsError, UnknownOptionError, UnusedCliTokensError

from muser.errors import UsageError

END = "--"
_TAKES_HYPHEN = ("-f", "--file", "--stop", "--system")


def hyphenated(arguments: Sequence[str]) -> list[str]:
    """The same command with each bare `-` where the parser takes it: it would call it a flag.

    Behind a flag of text it is that flag's value, else a word like any behind `--`.
    """
    flags, mark, words = _cut(arguments)
    kept: list[str] = []
    moved: list[str] = []
    for word in flags:
        if word != "-":
            kept.append(word)
        elif kept and kept[-1] in _TAKES_HYPHEN:
            kept[-1] += "=-"
        else:
            moved.append(word)
    mark = [END] if moved else mark
    return [*kept, *mark, *moved, *words]


def complaint(problem: CycloptsError, arguments: Sequence[str]) -> UsageError:
    """The parser's error as ours: what is left over, and what the person may have meant."""
    chain = tuple(problem.command_chain or ())
    see = f"See `{' '.join(('muser', *chain))} --help`."
    flags, _, words = _cut(arguments)
    left = _left_over(problem)
    if left == "-" or isinstance(problem, UnusedCliTokensError):
        if chain == ("run",):
            return UsageError(f'"{left}" is left over behind the prompt.', _quote(bool(words)))
        return UsageError(f'"{left}" is one word too many.', see)
    if left and _named(left, words) and not _named(left, flags):
        return UsageError(f"{left} stands behind --, where no flag is read.", _quote(True))
    return UsageError(" ".join(str(problem).split()), see)


def _left_over(problem: CycloptsError) -> str | None:
    """The word that the parser had no place for."""
    if isinstance(problem, UnknownOptionError):
        return problem.token.keyword or problem.token.value
    if isinstance(problem, UnusedCliTokensError) and problem.unused_tokens:
        return problem.unused_tokens[0]
    return None


def _named(flag: str, words: Sequence[str]) -> bool:
    return any(word == flag or word.startswith(f"{flag}=") for word in words)


def _quote(marked: bool) -> str:
    order = " Flags go before --." if marked else ""
    return f'Quote the prompt: muser run "The capital of France is".{order}'


def _cut(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """What stands before the first `--`, that mark if there is one, and what stands behind it."""
    at = arguments.index(END) if END in arguments else len(arguments)
    return list(arguments[:at]), list(arguments[at : at + 1]), list(arguments[at + 1 :])
