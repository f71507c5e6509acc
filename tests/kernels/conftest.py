"""Libraries of every instruction set this machine has, and the tally of what was compared."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from muser.kernels import Shelf, choose_library, load_library, supported_isas
from muser.kernels.compiler import isas_of, target_machine
from muser.places import libraries as library_folder

from .bench import differing, same_bits

THREADS = (1, 2, 3)


class Tally:
    """(format or operator, instruction set, threads) to comparisons and labels."""

    def __init__(self):
        self.counts = defaultdict(int)
        self.labels = defaultdict(dict)
        self.hashes = {}

    def compare(self, what, bench, label, expected, actual):
        """Fails unless every bit is equal; counts one comparison otherwise."""
        key = (what, bench.library.isa, bench.threads)
        assert same_bits(expected, actual), (*key, label, differing(expected, actual))
        self.counts[key] += 1
        self.labels[key][label] = None
        self.hashes[bench.library.isa] = bench.library.sha256

    def seen(self, isa, threads):
        """What was compared under a set with so many threads: formats or operators, and labels."""
        keys = [key for key in self.counts if key[1:] == (isa, threads)]
        return {key[0] for key in keys}, {label for key in keys for label in self.labels[key]}

    def table(self):
        """A line for each format or operator, instruction set and number of threads."""
        for what, isa, threads in sorted(self.counts):
            key = (what, isa, threads)
            labels = " ".join(_merged(self.labels[key]))
            yield f"{what:14} {isa:5} {threads} threads {self.counts[key]:6}  {labels}"

    def totals(self):
        """A line for each instruction set."""
        for isa, sha256 in sorted(self.hashes.items()):
            keys = [key for key in self.counts if key[1] == isa]
            count = sum(self.counts[key] for key in keys)
            pipelines = len({label for key in keys for label in self.labels[key]})
            threads = ", ".join(str(n) for n in sorted({key[2] for key in keys}))
            yield (
                f"cpu-{isa}: {count} comparisons of {pipelines} pipelines under {threads} threads,"
                f" library {sha256}"
            )


TALLY = pytest.StashKey[Tally]()


def pytest_configure(config):
    config.stash[TALLY] = Tally()


@pytest.fixture(scope="session")
def tally(request):
    return request.config.stash[TALLY]


@pytest.fixture(scope="session")
def shelf():
    return Shelf(library_folder())


@pytest.fixture(scope="session")
def libraries(shelf):
    """Instruction set to library, for every set that this machine has."""
    plain = choose_library(shelf, "c")
    return {isa: load_library(isa, shelf) for isa in supported_isas(plain)}


@pytest.fixture(params=THREADS, ids=lambda n: f"{n}t")
def threads(request):
    return request.param


@pytest.fixture(params=isas_of(target_machine()))
def library(request, libraries):
    if request.param not in libraries:
        pytest.skip(f"this machine has no {request.param}")
    return libraries[request.param]


@pytest.fixture
def rng(request):
    return np.random.default_rng(sum(request.node.originalname.encode()))


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name == "test_tally.py")


def pytest_terminal_summary(terminalreporter, config):
    tally = config.stash.get(TALLY, None)
    if tally is None or not tally.counts:
        return
    terminalreporter.section("comparisons with the oracle, equal bit for bit")
    if _is_asked_for(config):
        for line in tally.table():
            terminalreporter.line(line)
    for line in tally.totals():
        terminalreporter.line(line)


def _is_asked_for(config):
    """The whole table is for who runs these tests alone, or wants more of everything."""
    here = Path(__file__).parent
    folders = [(config.invocation_params.dir / name.partition("::")[0]) for name in config.args]
    return config.option.verbose >= 0 or any(here in (f, *f.parents) for f in folders)


def _merged(labels):
    """`name[isa=x,bucket=1]`, `name[isa=x,bucket=4]` as `name[isa=x,bucket=1|4]`."""
    merged = {}
    for label in labels:
        head, _, bucket = label.rstrip("]").partition(",bucket=")
        merged.setdefault(head, []).append(bucket)
    for head, bucket in merged.items():
        yield f"{head}]" if bucket == [""] else f"{head},bucket={'|'.join(bucket)}]"
