"""Second and third stage: a loaded library, checked against the registry, and its pipelines."""

import ctypes
import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from muser.errors import DeviceError
from muser.kernels.about import CONTRACT, About
from muser.kernels.compiler import Compiler, find_compiler, isas_of, target_machine
from muser.kernels.constants import FORMATS, Constants, read_constants, read_table
from muser.kernels.opening import open_library
from muser.kernels.registry import REGISTRY, Pipeline
from muser.kernels.shelf import Shelf, Shelved
from muser.kernels.source import MAIN, Source, read_source

log = logging.getLogger("muser.kernels")
ISA_BITS: Mapping[str, int] = {
    "c": 1,
    "avx2": 2,
    "avx512": 4,
    "amx": 8,
    "neon": 16,
    "neon_i8mm": 32,
}
"""`muser_instruction_sets` answers with these, from CPUID; the best one comes last."""


@dataclass(frozen=True, slots=True)
class Library:
    """One instruction set's kernels: `sha256` is that of the bytes that were loaded.

    `formats`: block type name to its number in the texts.
    """

    isa: str
    sha256: str
    handle: ctypes.CDLL
    constants: Constants
    formats: Mapping[str, int]
    addresses: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"cpu-{self.isa}"

    def address(self, pipeline: Pipeline) -> int:
        return self.addresses[pipeline.symbol]


def library_key(source: Source, compiler: Compiler, isa: str) -> str:
    """A hash over everything that decides a library's bytes."""
    # Of the command only its arguments: where a compiler lies does not decide what it makes.
    how = (compiler.identity, *compiler.command[1:], *compiler.flags(isa))
    parts = (source.digest, isa, target_machine(), *how)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def load_library(
    isa: str, shelf: Shelf, compiler: Compiler | None = None, source: Source | None = None
) -> Library:
    """The library of `isa`, compiled now if the shelf does not hold it.

    Raises `DeviceError` if it cannot be compiled or loaded, or lacks a kernel of the registry.
    """
    source, compiler = source or read_source(), compiler or find_compiler(shelf=shelf)

    def build(path: Path) -> None:
        what = "plain C" if isa == "c" else isa
        promise = "; the next start is fast" if shelf.keeps else ""
        log.info("Compiling the kernels for %s%s.", what, promise)
        compiler.build(source, isa, path)

    about = _about(source, compiler, isa)
    shelved = shelf.take(library_key(source, compiler, isa), build, about)
    return _checked(isa, shelved, open_library(shelved))


def _about(source: Source, compiler: Compiler, isa: str) -> About:
    flags = " ".join(compiler.flags(isa))
    return About(isa, CONTRACT, compiler.identity, target_machine(), flags, source.digest)


def _checked(isa: str, shelved: Shelved, handle: ctypes.CDLL) -> Library:
    table = read_table(handle)
    constants = read_constants(table, isa)
    formats = {name: table[name] for name in FORMATS if name in table}
    addresses = {}
    for pipeline in REGISTRY.values():
        addresses[pipeline.symbol] = _symbol(handle, pipeline.symbol, isa)
    return Library(isa, shelved.sha256, handle, constants, formats, addresses)


def _symbol(handle: ctypes.CDLL, symbol: str, isa: str) -> int:
    try:
        function = getattr(handle, symbol)
    except AttributeError:
        raise DeviceError(
            f"The {isa} kernel library lacks {symbol}, which the registry lists.",
            "This is a defect of the package; please report it.",
        ) from None
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


@dataclass(frozen=True, slots=True)
class Probe:
    """`cpu.h` alone, in plain C: what asks the processor before a set is chosen for it."""

    handle: ctypes.CDLL


def load_probe(shelf: Shelf, compiler: Compiler, source: Source) -> Probe:
    """A few hundred bytes of code, compiled in a tenth of a second. As `load_library`."""
    texts = {name: source.texts[name] for name in ("cpu.h", "muser.h")}
    probe = Source({MAIN: b'#define _GNU_SOURCE 1\n#include "cpu.h"\n', **texts})
    about = replace(_about(probe, compiler, "c"), isa="probe")

    def build(path: Path) -> None:
        compiler.build(probe, "c", path)

    return Probe(open_library(shelf.take(library_key(probe, compiler, "c"), build, about)))


def supported_isas(plain: Library | Probe) -> tuple[str, ...]:
    """What this processor and system can run, by CPUID bits; the best one last."""
    bits = int(plain.handle.muser_instruction_sets())
    possible = isas_of(target_machine())
    return tuple(isa for isa in possible if bits & ISA_BITS[isa])


def processor_of(library: Library | Probe) -> str | None:
    """Vendor and signature (family, model, stepping) of this processor; None where none is told."""
    words = (ctypes.c_uint32 * 4)()
    library.handle.muser_processor(words)
    return bytes(words).hex() if any(words) else None


def choose_library(
    shelf: Shelf, isa: str | None = None, environment: Mapping[str, str] = os.environ
) -> Library:
    """The best library for this machine; `isa`, or else `MUSER_ISA`, forces one.

    Raises `DeviceError` for a set that is unknown or that this machine lacks.
    """
    wanted = isa or environment.get("MUSER_ISA")
    if wanted and wanted not in ISA_BITS:
        raise DeviceError(
            f"{wanted!r} is not an instruction set of the CPU device.",
            f"MUSER_ISA may be {' or '.join(ISA_BITS)}.",
        )
    compiler, source = find_compiler(shelf=shelf), read_source()
    supported = supported_isas(load_probe(shelf, compiler, source))
    chosen = wanted or supported[-1]
    if chosen not in supported:
        raise DeviceError(
            f"This machine cannot run the {chosen} kernels.",
            f"Unset MUSER_ISA, or set it to {' or '.join(supported)}.",
        )
    return load_library(chosen, shelf, compiler, source)
