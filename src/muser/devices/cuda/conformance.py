"""A card must reproduce the vectors of `graph/conformance.py` before its first answer.

Once for each library, card, driver and compiler; a card whose words differ in one place is refused.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files

from muser.devices.cuda.card import Card, Facts
from muser.devices.cuda.placing import WeightSource
from muser.devices.cuda.runner import CudaRunner
from muser.devices.device import Limits
from muser.errors import DeviceError
from muser.graph import Graph
from muser.kernels import CudaLibrary, Shelf

PASSED = "passed"
_TEXTS = (
    ("muser.graph", "conformance.py"),
    ("muser.devices", "proofs.py"),
    ("muser.devices", "words.py"),
)


def require_conformance(
    opens: Callable[[], Card], facts: Facts, library: CudaLibrary, shelf: Shelf
) -> None:
    """Raises `DeviceError` naming the first check that differs."""
    about = f"{facts.name} {facts.capability} {facts.driver} {library.compiler}"
    texts = ((files(package) / name).read_bytes() for package, name in _TEXTS)
    data = b"\0".join((about.encode(), *texts))
    name = f"conformance-{library.sha256[:32]}-{hashlib.sha256(data).hexdigest()[:16]}"
    if shelf.note(name) == PASSED:
        return
    for check, wrong in run_checks(opens, library):
        if wrong:
            raise DeviceError(
                f"{facts.name} fails the conformance vectors: {check} differs in {wrong} places.",
                "This card, driver or compiler does not keep the arithmetic; use --device cpu.",
            )
    shelf.remember(name, PASSED)


def run_checks(opens: Callable[[], Card], library: CudaLibrary) -> Iterator[tuple[str, int]]:
    """Name of each check and how many words differ."""
    from muser.devices.cuda.primitives import primitive_checks  # a remembered pass needs no vector
    from muser.devices.proofs import attention_checks, operator_checks

    def runner(graph: Graph, weights: WeightSource, limits: Limits) -> CudaRunner:
        return CudaRunner(opens(), library, graph, weights, limits)

    def narrow(graph: Graph, weights: WeightSource, limits: Limits) -> CudaRunner:
        card = opens()
        card.facts = replace(card.facts, processors=1)
        return CudaRunner(card, library, graph, weights, limits)

    yield from primitive_checks(opens, library)
    yield from operator_checks(runner)
    for name, wrong in attention_checks(narrow):  # thread blocks then have many tiles each
        yield f"{name} on one multiprocessor", wrong
