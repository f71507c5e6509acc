"""Every unit of the CUDA texts compiled by NVRTC, and what its machine code says of itself."""

import functools
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from muser.kernels.cuda_registry import UNITS, units_of
from muser.kernels.nvrtc import Nvrtc
from muser.kernels.source import read_source

ARCHITECTURES = ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_120")
SLOW = ("attention", "attention90", "gemm90", "matvec", "batch")
GLOBAL_FUNCTION, OBJECT = 0x12, 1
HEADER = np.dtype([("magic", "S16"), ("", "V24"), ("sections", "<u8"), ("", "V10"),
                   ("size", "<u2"), ("count", "<u2"), ("names", "<u2")])  # fmt: skip
SECTION = np.dtype([("name", "<u4"), ("type", "<u4"), ("", "V16"), ("offset", "<u8"),
                    ("size", "<u8"), ("link", "<u4"), ("", "V20")])  # fmt: skip
SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("", "V1"), ("section", "<u2"),
                   ("value", "<u8"), ("size", "<u8")])  # fmt: skip
SYMBOLS = 2
USED = re.compile(
    r"Compiling entry function '(\w+)' for.*?(\d+) bytes stack frame, (\d+) bytes spill stores,"
    r" (\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)",
    re.DOTALL,
)
ENTRY = re.compile(r"\.entry (\w+)\((.*?)\)\s*(.*?)\{", re.DOTALL)


@dataclass(frozen=True)
class Use:
    """Of a kernel: registers of a thread; bytes of stack, spills and shared memory without the
    dynamic part; the bytes of its argument; the most threads of a block, None for any.
    """

    registers: int
    stack: int
    spills: int
    shared: int
    argument: int
    threads: int | None


@dataclass(frozen=True)
class Image:
    """A compiled unit. `sizes`: the 32-bit words by name, a text's `SIZE`s among them."""

    kernels: frozenset
    sizes: dict
    uses: dict
    ptx: str


def image_of(compiled):
    names, sizes = symbols_of(compiled.image)
    return Image(names, sizes, _uses(compiled), compiled.ptx)


def symbols_of(image):
    """Of an ELF file: names of its global functions, and its initialised 32-bit words."""
    header = np.frombuffer(image, HEADER, 1)[0]
    assert header["magic"].startswith(b"\x7fELF\x02\x01")
    assert header["size"] == SECTION.itemsize
    sections = np.frombuffer(image, SECTION, header["count"], int(header["sections"]))
    table = next(one for one in sections if one["type"] == SYMBOLS)
    text = int(sections[table["link"]]["offset"])
    symbols = np.frombuffer(image, SYMBOL, int(table["size"]) // SYMBOL.itemsize, table["offset"])
    functions, words = set(), {}
    for one in symbols:
        start = text + int(one["name"])
        name = image[start : image.index(b"\0", start)].decode()
        if one["info"] == GLOBAL_FUNCTION and one["section"]:
            functions.add(name)
        elif one["info"] & 15 == OBJECT and one["size"] == 4 and 0 < one["section"] < len(sections):
            at = int(sections[one["section"]]["offset"] + one["value"])
            words[name] = int.from_bytes(image[at : at + 4], "little")
    return frozenset(functions), words


def _uses(compiled):
    """Kernel to what it takes, as the assembler and the PTX say."""
    entries = {}
    for name, parameters, head in ENTRY.findall(compiled.ptx):
        sizes = re.findall(r"\.b8 \w+\[(\d+)\]", parameters)
        threads = re.search(r"\.maxntid (\d+)(?:, 1, 1)?\s", head)
        entries[name] = sum(map(int, sizes)), int(threads[1]) if threads else None
    uses = {}
    for name, stack, stores, loads, registers, more in USED.findall(compiled.log):
        shared = re.search(r"(\d+) bytes smem", more)
        spills = int(stores) + int(loads)
        held = int(shared[1]) if shared else 0
        uses[name] = Use(int(registers), int(stack), spills, held, *entries[name])
    return uses


class Images:
    """Compiles in the background: what is asked for is waited for, the rest goes on meanwhile."""

    def __init__(self):
        self.nvrtc, self._source = Nvrtc(), read_source("cuda")
        self._pool = ThreadPoolExecutor(os.cpu_count())
        jobs = [(name, unit) for name in ARCHITECTURES for unit in units_of(name)]
        jobs.sort(key=lambda job: job[1] not in SLOW)
        self._images: dict[tuple[str, str], Future] = {
            job: self._pool.submit(self._image, *job) for job in jobs
        }

    def unit(self, architecture, unit):
        return self._images[architecture, unit].result()

    @functools.cache  # noqa: B019 - one a session
    def contracted(self, architecture, unit):
        """The PTX where the compiler may join what the text leaves to it."""
        virtual = architecture.replace("sm", "compute")
        flags = ("--fmad=true",)
        return self.nvrtc.compiled(self._source, UNITS[unit].text, virtual, flags).ptx

    def close(self):
        self._pool.shutdown(cancel_futures=True)

    def _image(self, architecture, unit):
        flags = ("--ptxas-options=-v",)
        text = UNITS[unit].text
        return image_of(self.nvrtc.compiled(self._source, text, architecture, flags))
