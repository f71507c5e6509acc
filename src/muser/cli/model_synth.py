"""`muser model synth`."""


def synth() -> None:
    """Make a model file of random weights."""
