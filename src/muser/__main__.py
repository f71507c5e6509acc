"""`python -m muser` is `muser`."""

from muser.cli import main

main()
