"""The command line: `main` is the entry point of `muser`."""

from muser.cli.main import main

__all__ = ["main"]
