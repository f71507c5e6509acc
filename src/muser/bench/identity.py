"""What ran: the package, its kernel texts, the compiler, the libraries that were really loaded."""

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muser.bench.slots import Slots

if TYPE_CHECKING:
    from muser.devices.cuda.card import Facts

KIB = 1024
MODULE = re.compile(r"\b[0-9]{3}\.[0-9]+(\.[0-9]+)?\b")


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


def card_identity(facts: "Facts", compiler: str) -> dict[str, Any]:
    """A card, and what its kernels were made by: `driver` is the driver's CUDA and, where it says
    so, its own version.
    """
    from muser.kernels import read_source

    version = int(facts.driver)
    own = _kernel_module()
    return {
        "name": facts.name,
        "capability": ".".join(map(str, facts.capability)),
        "processors": facts.processors,
        "memory_bytes": facts.memory,
        "driver": f"CUDA {version // 1000}.{version % 1000 // 10}" + (f", {own}" if own else ""),
        "compiler": compiler,
        "kernel_texts_sha256": read_source("cuda").digest,
    }


def first_card() -> dict[str, Any]:
    """The identity of the card that `--device cuda` uses. Raises `DeviceError` without one."""
    from muser.devices.cuda.driver import find_card
    from muser.kernels.nvrtc import Nvrtc

    _, _, facts = find_card()
    return card_identity(facts, Nvrtc().identity)


def _kernel_module(proc: Path = Path("/proc")) -> str:
    """The version of NVIDIA's module of the kernel, as it tells it; nothing where it does not."""
    try:
        text = (proc / "driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = MODULE.search(text)
    return "" if found is None else found[0]


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
