"""What `muser doctor` finds out: facts by section, and problems, each with its remedy."""

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muser import places
from muser.errors import DeviceError, MuserError, StorageError
from muser.kernels import Shelf, find_compiler, read_source, supported_isas
from muser.kernels.library import load_probe
from muser.kernels.listing import Item, distrust, items

VARIABLES = ("MUSER_HOME", "MUSER_CC", "MUSER_ISA", "MUSER_ACCEPT_TERMS", "MUSER_DEBUG", "TMPDIR")
# What the kernels ask for, in the words of /proc/cpuinfo: x86-64 above, aarch64 below.
BITS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve"),
)


@dataclass
class Findings:
    """`facts` by section; `needed` stop every run, `others` do not."""

    facts: dict[str, Any] = field(default_factory=dict)
    needed: list[MuserError] = field(default_factory=list)
    others: list[MuserError] = field(default_factory=list)


def examine() -> Findings:
    """All of it. Compiles what a run would compile; writes nothing else."""
    found = Findings()
    found.facts["system"] = _system()
    found.facts["environment"] = {
        name: os.environ[name] for name in VARIABLES if name in os.environ
    }
    found.facts["processor"] = processor(Path("/proc"))
    found.facts["compiler"] = _compiler(found)
    found.facts["kernels"] = _kernels(found)  # before the places: it may make one
    found.facts["places"] = {
        "libraries": _place(places.libraries(), found, "kernels are compiled anew at every start"),
        "packed": _place(places.packed(), found, "weights are packed anew at every load"),
        "models": _place(places.models(), found, "no model can be fetched"),
    }
    found.facts["packed"] = _packed(found)
    found.facts["threads"] = _threads()
    found.facts["memory"] = memory(Path("/proc"))
    found.facts["models"] = _models()
    _check_templates(found)
    return found


def _system() -> dict[str, str]:
    import muser

    return {
        "muser": muser.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
    }


def processor(proc: Path) -> dict[str, Any]:
    """Name and bits as the system tells them; the kernels themselves ask the processor."""
    lines: dict[str, str] = {}
    for line in _text(proc / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        lines.setdefault(name.strip(), value.strip())
    told = set((lines.get("flags") or lines.get("Features") or "").split())
    return {
        "name": lines.get("model name", platform.processor() or platform.machine()),
        "bits": [bit for bit in BITS if bit in told],
    }


def memory(proc: Path) -> dict[str, int]:
    """Bytes in all and available; empty where the system does not tell."""
    sizes = {}
    for line in _text(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name in ("MemTotal", "MemAvailable") and words and words[0].isdigit():
            sizes[{"MemTotal": "bytes", "MemAvailable": "available"}[name]] = int(words[0]) << 10
    return sizes


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _place(path: Path, found: Findings, loss: str) -> dict[str, Any]:
    """A folder, or the nearest one above it that is there: Muser makes the rest when needed."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    reason = distrust(path)
    executable = _is_executable(there)
    if not writable:
        _other(found, f"{there} cannot be written: {loss}", "Name another with MUSER_HOME.")
    if reason and path != places.models():
        remedy = f"Give it to yourself alone: chown, then chmod 700 {path}; or set MUSER_HOME."
        _other(found, f"{path} {reason}, so nothing in it is used: {loss}", remedy)
    if not executable and path == places.libraries():
        remedy = "Mount it without noexec, or name another with MUSER_HOME."
        _other(found, f"{there} forbids execution: libraries are run from memory", remedy)
    return {
        "path": str(path),
        "exists": path.exists(),
        "writable": writable,
        "executable": executable,
        "trusted": reason is None,
        "free_bytes": shutil.disk_usage(there).free,
    }


def _is_executable(folder: Path) -> bool:
    if not hasattr(os, "statvfs"):
        return True
    return not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)


def _other(found: Findings, sentence: str, remedy: str) -> None:
    found.others.append(StorageError(f"{sentence}.", remedy))


def _compiler(found: Findings) -> dict[str, str] | None:
    try:
        compiler = find_compiler()
    except DeviceError as problem:
        found.needed.append(problem)
        return None
    version, _, target = compiler.identity.rpartition("\n")
    return {
        "command": " ".join(compiler.command),
        "version": next(iter(version.splitlines()), ""),
        "target": target,
    }


def _kernels(found: Findings) -> dict[str, Any]:
    """The sets that can run here, those on the shelf, and the one that a run would take."""
    folder = places.libraries()
    kernels: dict[str, Any] = {"supported": None, "built": [], "runs": None}
    if not found.needed:
        try:
            kernels |= _proved(Shelf(folder))
        except MuserError as problem:
            found.needed.append(problem)
    there = items(folder)
    kernels["built"] = _built(there)
    faults = [f"{item.key}.so is {item.fault}" for item in there if item.fault]
    if faults:
        rest = f", and {len(faults) - 1} more of {len(there)} are not sound" * (len(faults) > 1)
        remedy = "What is needed is compiled again; muser kernels clear drops the rest."
        _other(found, f"{folder / faults[0]}{rest}", remedy)
    return kernels


def _packed(found: Findings) -> dict[str, int]:
    """How many files of packed weights there are, their bytes, and how many nobody will ask for."""
    from muser.weights.packed_listing import items as packed_items

    there = packed_items(places.packed())
    faults = [f"{item.path} is {item.fault}" for item in there if item.fault]
    if faults:
        rest = f", and {len(faults) - 1} more of {len(there)} are not sound" * (len(faults) > 1)
        remedy = "What is needed is made again; muser kernels clear packed drops the rest."
        _other(found, f"{faults[0]}{rest}", remedy)
    size = sum(item.size for item in there)
    return {"files": len(there), "bytes": size, "stale": sum(bool(item.stale) for item in there)}


def _proved(shelf: Shelf) -> dict[str, Any]:
    from muser.devices import CpuDevice

    supported = supported_isas(load_probe(shelf, find_compiler(shelf=shelf), read_source()))
    library = CpuDevice(threads=1, shelf=shelf).library
    return {"supported": list(supported), "runs": {library.name: library.sha256}}


def _built(there: tuple[Item, ...]) -> list[str]:
    """Of these very texts."""
    source = read_source().digest
    sound = [item.about for item in there if item.about and not item.fault]
    return sorted({about.isa for about in sound if about.source == source})


def _threads() -> Mapping[str, Any]:
    from muser.devices.cpu.threads import allowed_processors, default_threads, quota

    return {
        "default": default_threads(),
        "processors": os.cpu_count(),
        "affinity": allowed_processors(),
        "quota": quota(),
    }


def _models() -> list[dict[str, Any]]:
    from muser.weights.catalogue import CATALOGUE, strangers

    known = [
        {"name": entry.name, "path": str(entry.path), "here": entry.is_here, "bytes": entry.size}
        for entry in CATALOGUE
    ]
    return known + [
        {"name": path.stem, "path": str(path), "here": True, "bytes": path.stat().st_size}
        for path in strangers()
    ]


def _check_templates(found: Findings) -> None:
    """Chat templates run in a process of their own, which some systems do not let start."""
    from datetime import datetime

    from muser.text.sandbox import Sandbox

    sandbox = Sandbox()
    try:
        sandbox.render("{{ 6 * 7 }}", {}, datetime(2000, 1, 1))
    except (MuserError, OSError) as problem:
        found.others.append(
            DeviceError(
                f"The process of chat templates does not work: {problem}",
                "Until it does, prompts need --raw.",
            )
        )
    finally:
        sandbox.close()
