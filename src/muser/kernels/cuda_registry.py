"""Every kernel of the CUDA device in one table, and the units of text that hold them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Unit:
    """A text that is compiled by itself. `only`: the architectures it is for; empty: all."""

    text: str
    only: tuple[str, ...] = ()

    def serves(self, architecture: str) -> bool:
        return not self.only or architecture in self.only


UNITS: Mapping[str, Unit] = MappingProxyType({})


def units_of(architecture: str) -> tuple[str, ...]:
    """The units that are compiled for an architecture."""
    return tuple(name for name, unit in UNITS.items() if unit.serves(architecture))
