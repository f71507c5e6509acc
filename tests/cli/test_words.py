"""Hyphens and words too many: where they go and what is said about them."""

import pytest
from outcome import Command

from muser.cli.words import hyphenated


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("run x", "run x"),
        ("run -", "run -- -"),
        ("run - -n 3", "run -n 3 -- -"),
        ("run - -- x", "run -- - x"),
        ("run -f - -n 3", "run -f=- -n 3"),
        ("run --stop - -", "run --stop=- -- -"),
        ("run -- -f -", "run -- -f -"),
    ],
)
def test_a_hyphen_goes_where_the_parser_takes_it(arguments: str, expected: str) -> None:
    assert hyphenated(arguments.split()) == expected.split()


QUOTE = 'Quote the prompt: muser run "The capital of France is".'


@pytest.mark.parametrize(
    ("arguments", "sentence", "remedy"),
    [
        ("run The capital of", '"capital" is left over behind the prompt.', QUOTE),
        ("run - x", '"-" is left over behind the prompt.', QUOTE),
        ("run hi -- -n 3", "-n stands behind --, where no flag is read.", None),
        ("run -- hi --seed=3", "--seed stands behind --, where no flag is read.", None),
        ("run -- -n 3", '"3" is left over behind the prompt.', None),
        ("run hi --frob -- x", "Unknown option: --frob.", "See `muser run --help`."),
        ("tokenize -", '"-" is one word too many.', "See `muser tokenize --help`."),
        ("model list x", '"x" is one word too many.', "See `muser model list --help`."),
    ],
)
def test_what_is_left_over_is_named(
    command: Command, arguments: str, sentence: str, remedy: str | None
) -> None:
    outcome = command(*arguments.split())
    assert (outcome.status, outcome.out) == (2, "")
    remedy = remedy or f"{QUOTE} Flags go before --."
    assert outcome.err == f"error: {sentence}\n{remedy}\n"
