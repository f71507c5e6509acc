"""NVIDIA's run-time compiler, by its bindings: CUDA texts to machine code, without a card."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from muser.errors import DeviceError
from muser.kernels.source import Source

FLAGS = (
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "-std=c++17",
)
INSTALL = "Install the CUDA extra: pip install 'muser[cuda]'."


@dataclass(frozen=True, slots=True)
class Compiled:
    """A unit's machine code (empty for a virtual architecture), its PTX and what was remarked."""

    image: bytes = field(repr=False)
    ptx: str = field(repr=False)
    log: str


class Nvrtc:
    """`identity` names the compiler and its version. Raises `DeviceError` where there is none."""

    def __init__(self) -> None:
        self._api = bindings("nvrtc")
        try:
            major, minor = self._call(self._api.nvrtcVersion())
        except Exception as error:  # the bindings are here without the compiler's library
            raise DeviceError(f"NVRTC cannot be loaded ({error}).", INSTALL) from error
        self.identity = f"NVRTC {major}.{minor}"

    def flags(self, architecture: str) -> tuple[str, ...]:
        """All flags that decide the bytes of a library."""
        return (f"--gpu-architecture={architecture}", *FLAGS)

    def compiled(
        self, source: Source, unit: str, architecture: str, more: tuple[str, ...] = ()
    ) -> Compiled:
        """The text `unit`. Raises `DeviceError` with the compiler's first complaint."""
        api, names = self._api, [name for name in source.texts if name != unit]
        program = self._call(
            api.nvrtcCreateProgram(
                source.texts[unit],
                unit.encode(),
                len(names),
                [source.texts[name] for name in names],
                [name.encode() for name in names],
            )
        )
        try:
            flags = [flag.encode() for flag in (*self.flags(architecture), *more)]
            (status,) = api.nvrtcCompileProgram(program, len(flags), flags)
            log = self._text(api.nvrtcGetProgramLogSize, api.nvrtcGetProgramLog, program)
            if int(status):
                raise DeviceError(
                    f"{self.identity} could not compile {unit} for {architecture}: {_first(log)}.",
                    "Update the packages of muser[cuda], or use --device cpu.",
                )
            size = self._call(api.nvrtcGetCUBINSize(program))
            image = _room(size)
            if size:
                self._call(api.nvrtcGetCUBIN(program, image))
            return Compiled(
                image[:size], self._text(api.nvrtcGetPTXSize, api.nvrtcGetPTX, program), log
            )
        finally:
            api.nvrtcDestroyProgram(program)

    def _text(self, size: Callable[..., Any], get: Callable[..., Any], program: object) -> str:
        text = _room(self._call(size(program)))
        self._call(get(program, text))
        return str(text.rstrip(b"\0 "), "utf-8", "replace")

    def _call(self, answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if int(status):
            raise DeviceError(f"NVRTC refused a call ({status.name}).", INSTALL)
        return values[0] if len(values) == 1 else tuple(values)


def _room(size: int) -> bytes:
    """Bytes that the compiler may write into. Never a single one: Python has but one object of each
    of those, and what is written there changes it for the whole process.
    """
    return b"\0" * (size + 2)


def bindings(library: str) -> ModuleType:
    """NVIDIA's bindings of one library. Raises `DeviceError` where they are not installed."""
    try:
        return import_module(f"cuda.bindings.{library}")
    except ImportError as error:
        raise DeviceError(f"The CUDA bindings are not here ({error}).", INSTALL) from error


def _first(log: str) -> str:
    """The first complaint."""
    lines = [line.strip() for line in log.splitlines() if "error" in line]
    return next(iter(lines or log.splitlines()), "it says nothing")
