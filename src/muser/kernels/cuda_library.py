"""A CUDA library: every unit of the texts, compiled for one architecture, kept on the shelf.

On the shelf it is a stored zip archive, one member a unit: units are compiled side by side, and a
card loads each by itself.
"""

import io
import logging
import os
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from muser.errors import DeviceError
from muser.kernels.about import CARD, CONTRACT, About
from muser.kernels.cuda_registry import UNITS, units_of
from muser.kernels.nvrtc import Nvrtc
from muser.kernels.shelf import Shelf, Shelved
from muser.kernels.source import Source, read_source

log = logging.getLogger("muser.kernels")
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member: the same code gives the same archive


@dataclass(frozen=True, slots=True)
class CudaLibrary:
    """`images`: unit to its machine code; `sha256` is that of the archive they came in."""

    architecture: str
    compiler: str
    sha256: str
    images: Mapping[str, bytes] = field(repr=False)

    @property
    def name(self) -> str:
        return f"cuda-{self.architecture}"


def load_cuda(architecture: str, shelf: Shelf, source: Source | None = None) -> CudaLibrary:
    """The library of an architecture, compiled now if the shelf does not hold it.

    Raises `DeviceError` if there is no compiler, or if it refuses a text.
    """
    nvrtc, texts = Nvrtc(), source or read_source("cuda")
    flags = " ".join(nvrtc.flags(architecture))
    about = About(architecture, CONTRACT, nvrtc.identity, CARD, flags, texts.digest)

    def build(path: Path) -> None:
        promise = "; the next start is fast" if shelf.keeps else ""
        log.info("Compiling the kernels for %s%s.", architecture, promise)
        _write(path, compile_units(nvrtc, texts, architecture))

    shelved = shelf.take(about.key, build, about)
    return CudaLibrary(architecture, nvrtc.identity, shelved.sha256, _read(shelved))


def compile_units(nvrtc: Nvrtc, source: Source, architecture: str) -> Mapping[str, bytes]:
    """Unit to its machine code, several compiled at once."""
    names = units_of(architecture)

    def image(unit: str) -> bytes:
        return nvrtc.compiled(source, UNITS[unit].text, architecture).image

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(names, pool.map(image, names), strict=True))


def _write(path: Path, images: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for unit, image in sorted(images.items()):
            archive.writestr(zipfile.ZipInfo(unit, EPOCH), image)


def _read(shelved: Shelved) -> Mapping[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(shelved.data)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except zipfile.BadZipFile as error:  # its hash was right, so we wrote it so
        raise DeviceError(
            f"The kernel library {shelved.path} is no archive ({error}).",
            "Clear the shelf with `muser kernels clear`.",
        ) from error
