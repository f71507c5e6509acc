"""`muser model fetch`."""

from typing import Annotated

from cyclopts import Parameter

from muser.cli.progress import obtained


def fetch(
    model: Annotated[str, Parameter(help="A catalogue name.")],
    *,
    accept_terms: Annotated[
        bool,
        Parameter(
            help="Accept the terms that the model comes under.", negative=(), show_default=False
        ),
    ] = False,
) -> None:
    """Fetch a model unless it is here, and print where it lies."""
    print(obtained(model, accept_terms=accept_terms))
