"""CUDA texts compiled as C++ and run on this CPU, one fiber a CUDA thread.

The texts are those of `muser.kernels.cuda`; `shim.h` stands in for a card below them. What a card
leaves undefined (a missing barrier, lanes that part, shared memory nobody wrote) is made to show.
"""

import ctypes
import functools
import hashlib
import mmap
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path

import numpy as np

import muser
from muser.places import libraries

from .memory import Pieces

HERE = Path(__file__).parent
TEXTS = Path(muser.__file__).parent / "kernels" / "cuda"
FLAGS = (
    "-std=c++17",
    "-O2",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-march=native",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-exceptions",
    "-U_FORTIFY_SOURCE",  # its longjmp knows one stack only
    "-fno-crossjumping",  # traps of different lines stay apart
    "-Wno-ignored-optimization-argument",
    "-fsanitize=alignment,bounds",
    "-fsanitize-undefined-trap-on-error",
    "-w",
    "-DMUSER_SHIM",
)
KERNEL = re.compile(r'extern "C" __attribute__\(\(visibility\("default"\), used\)\) void\s+(\w+)')
_libc = ctypes.CDLL(None, use_errno=True)
RAN: set[tuple[str, str]] = set()
"""Architecture and kernel of every launch that came to its end in this process."""
HANDED = Pieces()
"""What kernels may read and write."""
ON_CARD = bool(os.environ.get("MUSER_CARD"))
"""Whether the texts run on a real card here."""
LOST: list[str] = []
"""Why the card answers nothing any more; empty while it does."""


class ShimFailure(AssertionError):
    """A text does not compile, or a launch did what no card may be asked to do."""


class Entry(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("size", ctypes.c_uint64))


@functools.cache
def compiler():
    """g++ or clang++ for this very machine, as a command; None without one."""
    machine = platform.machine().replace("arm64", "aarch64")
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            asked = subprocess.run((name, "-dumpmachine"), capture_output=True, text=True)
            if asked.stdout.startswith((machine, platform.machine())):
                return name
    return None


def defines(architecture):
    """The macros by which NVRTC names `sm_90a` and its like to a text."""
    number, feature = re.fullmatch(r"sm_(\d+)(a?)", architecture).groups()
    names = [f"-D__CUDA_ARCH__={number}0", "-D__CUDACC__"]
    return names + ([f"-D__CUDA_ARCH_FEAT_SM{number}_ALL"] if feature else [])


def room(size, alignment=256):
    """Bytes of zeros, aligned like an allocation on a card, that end before a page of nobody's.

    Fewer than `alignment` bytes lie between their end and that page; they are zeros too.
    """
    pages = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, pages + 2 * mmap.PAGESIZE), np.uint8)
    for guard in (0, pages + mmap.PAGESIZE):
        page = ctypes.c_void_p(memory.ctypes.data + guard)
        assert _libc.mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    at = mmap.PAGESIZE + (pages - size) // alignment * alignment
    found = memory[at : at + size]
    HANDED.add(found.ctypes.data, size)
    weakref.finalize(memory, HANDED.drop, found.ctypes.data).atexit = False
    return found


def device(array, alignment=256):
    """A copy in a room of its own."""
    array = np.ascontiguousarray(array)
    copy = room(array.nbytes, alignment).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def address(array):
    """Where an array lies, for an argument; 0 for None. A card reads none but those made here."""
    if array is None:
        return 0
    where = array.ctypes.data
    if HANDED.holding(where) is None:
        raise ShimFailure("a launch may point only to what `device`, `poisoned` or `room` made")
    return where


def poisoned(shape, dtype):
    """What nobody has written yet: all bits set, a NaN as f32."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return device(np.full(size, 0xFF, np.uint8)).view(dtype).reshape(shape)


class Shim:
    """A library of some texts for one architecture.

    `texts`: names in the package's folder of CUDA texts, or in this one, included in order after
    `muser.cuh`.
    """

    def __init__(self, texts, architecture):
        self.architecture = architecture
        self.inexact_sums = 0
        with tempfile.TemporaryDirectory(prefix="muser-shim-") as folder:
            self.path = _build(Path(folder), ("muser.cuh", *texts), architecture)
        self._runtime = _runtime()
        self._library = ctypes.CDLL(str(self.path))
        count = ctypes.c_int.in_dll(self._library, "shim_entry_count").value
        entries = (Entry * count).in_dll(self._library, "shim_entries")
        self._statics = (ctypes.c_void_p * 2).in_dll(self._library, "shim_statics")
        self.kernels = {entry.name.decode(): entry for entry in entries}

    def size(self, name):
        """A `SIZE` of the texts."""
        return ctypes.c_int.in_dll(self._library, name).value

    def launch(self, kernel, grid, block, argument, shared=0, seed=0):
        """Run one kernel to its end; `argument` is the bytes of its struct.

        `seed` 0: fibers go on in the order in which they could; otherwise in one drawn from it.
        Raises `ShimFailure` with what went wrong, and in which thread.
        """
        argument = bytes(argument)
        if kernel not in self.kernels:
            raise ShimFailure(f"no text has a kernel {kernel}; there are {sorted(self.kernels)}")
        entry = self.kernels[kernel]
        if len(argument) != entry.size:
            raise ShimFailure(f"{kernel} takes {entry.size} bytes, not {len(argument)}")
        refuse_astray(kernel, argument)
        said, pc, sums = ctypes.create_string_buffer(600), ctypes.c_void_p(), ctypes.c_uint64()
        aligned = device(np.frombuffer(argument, np.uint8))
        failed = self._runtime.shim_launch(
            ctypes.byref(entry),
            self._statics,
            _three(grid),
            _three(block),
            ctypes.c_void_p(aligned.ctypes.data),
            ctypes.c_uint32(shared),
            ctypes.c_uint64(seed),
            ctypes.byref(sums),
            ctypes.byref(pc),
            said,
            ctypes.c_uint64(len(said)),
        )
        self.inexact_sums += sums.value
        if failed:
            raise ShimFailure(f"{kernel}: {said.value.decode()}{self._line(pc.value)}")
        RAN.add((self.architecture, kernel))

    def _line(self, pc):
        """Where a fault was, if `addr2line` is there to say it."""
        if not pc or not shutil.which("addr2line"):
            return ""
        maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        mine = [line for line in maps if line[-1] == str(self.path)]
        base = min((int(line[0].split("-")[0], 16) for line in mine), default=0)
        command = ("addr2line", "-i", "-s", "-e", str(self.path), hex(pc - base))
        lines = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")
        return " at " + " in ".join(line for line in lines if line)


def refuse_astray(kernel, argument):
    """Raises `ShimFailure` if an argument points to memory that is not the card's."""
    if found := HANDED.astray(argument):
        where = ", ".join(map(str, found))
        raise ShimFailure(f"{kernel}: byte {where} of its argument points to no memory of the card")


def _three(sizes):
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return (ctypes.c_uint32 * 3)(*(*sizes, 1, 1)[:3])


def _call(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        errors = [
            line for line in done.stderr.splitlines() if "error" in line or "undefined" in line
        ]
        raise ShimFailure(
            "\n".join(errors[:12] or [done.stderr[-2000:]]) + f"\n{shlex.join(command)}"
        )
    return done.stdout


def _build(folder, names, architecture):
    """Compile `#include`s of `names` and a table of their kernels, or find it compiled."""
    command = (compiler(), *FLAGS, *defines(architecture))
    command += (f"-I{folder}", f"-I{TEXTS}", f"-I{HERE}")
    main = folder / "shim_main.cpp"
    includes = "".join(f'#include "{name}"\n' for name in names)
    main.write_text(includes)
    whole = _call((*command, "-E", "-P", str(main)), folder)
    kernels = list(dict.fromkeys(KERNEL.findall(whole)))
    main.write_text(includes + _table(kernels))
    # Without start files nothing but __shared__ variables lies in .bss.
    return _compiled(whole, (*command, "-nostartfiles", str(main)), defines(architecture), folder)


@functools.cache
def _runtime():
    """shim.cpp, loaded so that the libraries of texts find it."""
    command = (
        compiler(),
        *FLAGS,
        "-fno-sanitize=all",
        "-fvisibility=default",
        str(HERE / "shim.cpp"),
    )
    whole = _call((*command, "-E", "-P"), HERE)
    with tempfile.TemporaryDirectory(prefix="muser-shim-") as folder:
        path = _compiled(whole, command, (), Path(folder))
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _compiled(whole, command, more, folder):
    identity = subprocess.run((command[0], "--version"), capture_output=True).stdout
    parts = (whole.encode(), " ".join(more).encode(), identity, _cpu(), Path(__file__).read_bytes())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()
    shelf = libraries() / "shim"
    path = shelf / f"{key[:24]}.so"
    if not path.exists():
        shelf.mkdir(parents=True, exist_ok=True)
        made = folder / "made.so"
        _call((*command, "-shared", "-o", str(made), "-lm"), folder)
        partial = path.with_suffix(f".{folder.name}")
        shutil.copy(made, partial)
        partial.rename(path)
    return path


def _cpu():
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return "".join(line for line in lines[:40] if line.startswith(("flags", "model name"))).encode()


def _table(kernels):
    rows = "".join(
        f'    {{"{name}", [](const void* p) {{ shim_call({name}, p); }}, shim_size({name})}},\n'
        for name in kernels
    )
    return f"""
struct Entry {{
    const char* name;
    void (*call)(const void*);
    u64 size;
}};
template <class S>
static void shim_call(void (*kernel)(S), const void* p) {{ kernel(*(const S*)p); }}
template <class S>
constexpr u64 shim_size(void (*)(S)) {{ return sizeof(S); }}
#define SHOWN __attribute__((visibility("default")))
extern "C" {{
SHOWN extern const Entry shim_entries[] = {{
{rows}}};
SHOWN extern const int shim_entry_count = {len(kernels)};
extern u8 __bss_start[] __attribute__((visibility("hidden")));
extern u8 _end[] __attribute__((visibility("hidden")));
SHOWN extern u8* const shim_statics[] = {{__bss_start, _end}};
}}
"""


def runs(architecture):
    """Whether texts can run as those of an architecture: here, as those of each."""
    return True


if ON_CARD:  # the same names, and a card behind them
    from .live import Live as Shim  # noqa: F401
    from .live import device, poisoned, runs  # noqa: F401
