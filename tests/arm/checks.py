"""Runs inside the emulated machine: the sets it finds, each of them against the conformance words.

Prints `sets` and their names, then a line for each set and check that differs. The words of
`graph/conformance.py` go through every projection in every row bucket, so on a processor without an
instruction they also show that a set does not use it: it would be killed.
"""

from muser.devices.cpu.conformance import run_checks
from muser.kernels import Shelf, choose_library, load_library, supported_isas
from muser.places import libraries

shelf = Shelf(libraries())
isas = supported_isas(choose_library(shelf, "c"))
print("sets", *isas)
for isa in isas:
    library = load_library(isa, shelf)
    checks = dict(run_checks(library))
    print(isa, len(checks), *(name for name, wrong in checks.items() if wrong))
