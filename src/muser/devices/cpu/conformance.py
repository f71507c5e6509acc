"""A library must reproduce the vectors of `graph/conformance.py`, once, before its first pipeline.

A device whose words differ in one place is refused: there is no "nearly" in this arithmetic.
"""

import hashlib
from collections.abc import Iterator
from importlib.resources import files

from muser.errors import DeviceError
from muser.kernels import Library, Shelf, processor_of

PASSED = "passed"
_TEXTS = (
    ("muser.graph", "conformance.py"),
    ("muser.devices", "proofs.py"),
    ("muser.devices", "words.py"),
    ("muser.devices.cpu", "vectors.py"),
)


def require_conformance(library: Library, shelf: Shelf) -> None:
    """Runs the vectors unless the shelf remembers that these very bytes passed them here.

    A shelf may lie in a home that several machines share: a pass is one processor's, and one that
    cannot be told from others is never remembered. Raises `DeviceError` naming the first check that
    differs.
    """
    processor = processor_of(library)
    name = (
        f"conformance-{library.sha256[:32]}-{_digest(repr(processor).encode())}-{_digest(data())}"
    )
    if processor is not None and shelf.note(name) == PASSED:
        return
    for check, wrong in run_checks(library):
        if wrong:
            raise DeviceError(
                f"The {library.isa} kernels fail the conformance vectors: {check} differs in"
                f" {wrong} places.",
                "This compiler or processor does not keep the arithmetic; set MUSER_CC to another"
                " compiler, or MUSER_ISA=c.",
            )
    if processor is not None:
        shelf.remember(name, PASSED)


def run_checks(library: Library) -> Iterator[tuple[str, int]]:
    """Name of each check and how many words differ."""
    from muser.devices.cpu.vectors import run_checks  # a remembered pass needs no vector

    yield from run_checks(library)


def data() -> bytes:
    """Changes with the vectors and with how they are run: a remembered pass is about these."""
    return b"\0".join((files(package) / name).read_bytes() for package, name in _TEXTS)


def _digest(what: bytes) -> str:
    return hashlib.sha256(what).hexdigest()[:16]
