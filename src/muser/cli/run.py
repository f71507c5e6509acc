"""`muser run`."""


def run() -> None:
    """Answer a prompt."""
