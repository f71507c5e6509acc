"""The lines that a probe hands back, and their table."""

from collections.abc import Sequence
from dataclasses import dataclass

READ_ROOF = 4.341e12  # bytes a second, measured on an H200
F16_ROOF = 721e12  # library product, measured on an H200
INT8_ROOF = 932e12


@dataclass(frozen=True, slots=True)
class Line:
    """One case of one probe: words compared, words that differ, and what the clock said."""

    probe: str
    case: str
    compared: int
    different: int
    seconds: float = 0.0
    rate: str = ""

    def cells(self) -> tuple[str, ...]:
        clock = f"{self.seconds * 1e6:.2f}" if self.seconds else ""
        return (
            self.probe,
            self.case,
            f"{self.compared:,}",
            f"{self.different:,}",
            clock,
            self.rate,
        )


def markdown(lines: Sequence[Line]) -> str:
    head = ("probe", "case", "words compared", "different", "µs", "rate")
    rows = [head, ("---",) * len(head), *(line.cells() for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
