"""What ran: the package, its kernel texts, the compiler, the libraries that were really loaded."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muser.bench.slots import Slots

KIB = 1024


def build_identity() -> dict[str, Any]:
    """This package: nothing here depends on a flag or on what a name promises."""
    import muser
    from muser.kernels import find_compiler, read_source

    return {
        "engine": "muser",
        "version": muser.__version__,
        "build": {
            "kernel_texts_sha256": read_source().digest,
            "compiler": find_compiler().identity.splitlines()[0],
            "python": platform.python_version(),
        },
    }


def played_identity(slots: Slots) -> dict[str, Any]:
    """The libraries that were loaded and the pipelines that were played."""
    return {
        "libraries": dict(slots.libraries),
        "instruction_sets": sorted(slots.libraries),
        "labels": {kind: list(labels) for kind, labels in slots.labels.items()},
    }


def machine_identity(proc: Path = Path("/proc")) -> dict[str, Any]:
    """Processor, cores, caches, memory, system: what a figure depends on, and no name of a host."""
    from muser.devices import default_threads

    cpu = _lines(proc / "cpuinfo")
    memory = _lines(proc / "meminfo").get("MemTotal", "0 kB").split()[0]
    return {
        "processor": cpu.get("model name", platform.machine()),
        "family": "/".join(cpu.get(name, "?") for name in ("cpu family", "model", "stepping")),
        "cores": default_threads(),
        "cache": cpu.get("cache size", "unknown"),
        "virtual": "hypervisor" in cpu.get("flags", "").split(),
        "memory_bytes": int(memory) * KIB,
        "system": f"{platform.system()} {platform.release()}",
    }


def _lines(path: Path) -> Mapping[str, str]:
    """The first of each line `name : value`."""
    found: dict[str, str] = {}
    try:
        text = path.read_text()
    except OSError:
        return found
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found
