"""What a model takes of a card, summed up before anything is loaded, and then taken."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from muser.devices.cuda.card import Address, Card
from muser.errors import LimitError

ALIGNMENT = 256  # bytes
SPARE = 256 << 20  # what the driver keeps for itself: contexts, code, graphs


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes by what they are for."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        shown = (f"{name} {size / 1e9:.2f}" for name, size in self.parts.items())
        return f"{' + '.join(shown)} = {self.total / 1e9:.2f} GB"

    def check(self, card: Card) -> None:
        """Raises `LimitError` with the sum if the card has less."""
        free = card.free_bytes() - SPARE
        if self.total > free:
            raise LimitError(
                f"This model takes {self} of {card.facts.name}, which has"
                f" {max(free, 0) / 1e9:.2f} GB free.",
                "Choose a smaller context or chunk, end what else uses the card, or use"
                " --device cpu.",
            )


@dataclass(frozen=True, slots=True)
class Room:
    """A place on a card, and its size in bytes."""

    address: Address
    size: int


@dataclass
class Memory:
    """Allocations on a card, each with a name."""

    card: Card
    sizes: dict[str, int] = field(default_factory=dict)

    def take(self, name: str, size: int) -> Address:
        """`size` bytes of zeros, counted under `name`."""
        self.sizes[name] = self.sizes.get(name, 0) + padded(size)
        return self.card.allocate(padded(size))

    def rooms(self, name: str, sizes: Mapping[str, int]) -> Mapping[str, Room]:
        """A room of each size, all counted under `name`."""
        return {room: Room(self.take(name, size), size) for room, size in sizes.items()}


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
