"""NVIDIA's run-time compiler, by its bindings: CUDA texts to machine code, without a card."""

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


class Nvrtc:
    """`identity` names the compiler and its version. Raises `DeviceError` where there is none."""

    def __init__(self) -> None:
        self._api = _bindings()
        try:
            major, minor = self._call(self._api.nvrtcVersion())
        except Exception as error:  # the bindings are here without the compiler's library
            raise DeviceError(f"NVRTC cannot be loaded ({error}).", INSTALL) from error
        self.identity = f"NVRTC {major}.{minor}"

    def flags(self, architecture: str) -> tuple[str, ...]:
        """All flags that decide the bytes of a library."""
        return (f"--gpu-architecture={architecture}", *FLAGS)

    def cubin(self, source: Source, unit: str, architecture: str, *more: str) -> tuple[bytes, str]:
        """Machine code of the text `unit`, and the compiler's remarks."""
        program, log = self._compiled(source, unit, architecture, more)
        api = self._api
        image = b" " * self._call(api.nvrtcGetCUBINSize(program))
        self._call(api.nvrtcGetCUBIN(program, image))
        return image, log

    def ptx(self, source: Source, unit: str, architecture: str) -> str:
        """The assembler text of `unit`."""
        program, _ = self._compiled(source, unit, architecture, ())
        text = b" " * self._call(self._api.nvrtcGetPTXSize(program))
        self._call(self._api.nvrtcGetPTX(program, text))
        return str(text.rstrip(b"\0"), "utf-8")

    def _compiled(
        self, source: Source, unit: str, architecture: str, more: tuple[str, ...]
    ) -> tuple[object, str]:
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
        flags = [flag.encode() for flag in (*self.flags(architecture), *more)]
        (status,) = api.nvrtcCompileProgram(program, len(flags), flags)
        log = self._log(program)
        if int(status):
            raise DeviceError(
                f"{self.identity} could not compile {unit} for {architecture}: {_first(log)}.",
                "Update the packages of muser[cuda], or use --device cpu.",
            )
        return program, log

    def _log(self, program: object) -> str:
        text = b" " * self._call(self._api.nvrtcGetProgramLogSize(program))
        self._call(self._api.nvrtcGetProgramLog(program, text))
        return str(text.rstrip(b"\0 "), "utf-8", "replace")

    def _call(self, answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if int(status):
            raise DeviceError(f"NVRTC refused a call ({status.name}).", INSTALL)
        return values[0] if len(values) == 1 else tuple(values)


def _bindings() -> ModuleType:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DeviceError(f"The CUDA bindings are not here ({error}).", INSTALL) from error
    module: ModuleType = nvrtc
    return module


def _first(log: str) -> str:
    """The first complaint."""
    lines = [line.strip() for line in log.splitlines() if "error" in line]
    return next(iter(lines or log.splitlines()), "it says nothing")
