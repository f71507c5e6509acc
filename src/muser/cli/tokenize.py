"""`muser tokenize`: text on standard input, token ids out; the file's metadata is enough."""

from typing import Annotated

from cyclopts import Parameter

from muser.cli.progress import obtained
from muser.cli.prompt import decoded, piped


def tokenize(
    *,
    model: Annotated[
        str | None,
        Parameter(
            name=("--model", "-m"), help="A catalogue name or a GGUF file; default smollm2-135m."
        ),
    ] = None,
    special: Annotated[
        bool,
        Parameter(help="Read special tokens in the text as such.", negative=(), show_default=False),
    ] = False,
    no_bos: Annotated[
        bool,
        Parameter(
            help="Leave out the first token that the file asks for.",
            negative=(),
            show_default=False,
        ),
    ] = False,
    json: Annotated[
        bool, Parameter(help='Print {"ids": […]}.', negative=(), show_default=False)
    ] = False,
) -> None:
    """Turn the text on standard input into token ids, one a line beside its text."""
    from muser.formats import GgufFile
    from muser.text import Tokenizer

    text = decoded(piped(), "Standard input")
    with GgufFile.open(obtained(model)) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        ids = tokenizer.encode(text, special=special, bos=False if no_bos else None)
        if json:
            import json as codec

            print(codec.dumps({"ids": ids}))
            return
        for token in ids:
            print(f"{token}\t{tokenizer.token_bytes(token).decode('utf-8', 'backslashreplace')!r}")
