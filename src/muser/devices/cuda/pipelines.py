"""The kernels of a library on a card, by name."""

from collections.abc import Mapping
from threading import Lock

from muser.devices.cuda.card import Card, Kernel, Loaded
from muser.errors import DeviceError
from muser.kernels import CUDA_KERNELS, CudaLibrary


class Pipelines:
    """Loads units when one of their kernels is first asked for, by whichever thread."""

    def __init__(self, card: Card, library: CudaLibrary) -> None:
        self.architecture = library.architecture
        self._card, self._images = card, library.images
        self._loaded: dict[str, Loaded] = {}
        self._kernels: dict[str, tuple[Kernel, int]] = {}
        self._turn = Lock()

    def has(self, name: str) -> bool:
        """Whether this architecture has the kernel."""
        return CUDA_KERNELS.get(name, "") in self._images

    def kernel(self, name: str, shared: int) -> Kernel:
        """Raises `DeviceError` for a name that the registry or the library lacks."""
        with self._turn:
            known = self._kernels.get(name)
            if known is not None and known[1] >= shared:
                return known[0]
            kernel = self._unit(name).kernel(name, shared)
            self._kernels[name] = kernel, shared
            return kernel

    def size(self, name: str, constant: str) -> int:
        """A constant that the unit of the kernel `name` reports."""
        with self._turn:
            return self._unit(name).size(constant)

    def label(self, name: str, constants: Mapping[str, object]) -> str:
        shown = {"arch": self.architecture, **constants}
        return f"{name}[{','.join(f'{key}={value}' for key, value in shown.items())}]"

    def _unit(self, name: str) -> Loaded:
        """Of a caller that has the turn: no unit is loaded twice."""
        unit = CUDA_KERNELS.get(name)
        if unit is None or unit not in self._images:
            raise DeviceError(
                f"The CUDA device has no kernel {name!r} for {self.architecture}.",
                "This is a defect of the lowering table; please report it.",
            )
        if unit not in self._loaded:
            self._loaded[unit] = self._card.library(self._images[unit])
        return self._loaded[unit]
