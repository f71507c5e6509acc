"""Everything Muser raises on purpose: a code, a sentence, a remedy, an exit status.

A caller catches `MuserError`, or one of the kinds below. The command line prints the sentence and
the remedy and exits with `exit_status`; the server answers with `code`.
"""

from typing import ClassVar


class MuserError(Exception):
    """Base of every error that a user can act on.

    `sentence` says what is wrong, naming the thing; `remedy` says what to do about it.
    """

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(f"{sentence} {remedy}")
        self.sentence = sentence
        self.remedy = remedy


class UsageError(MuserError):
    """A request that cannot be understood: a flag, a parameter, an empty prompt."""

    code = "usage"
    exit_status = 2


class FormatError(MuserError):
    """A file whose bytes break its format: truncated, oversized counts, overlapping tensors."""

    code = "format"
    exit_status = 3


class ModelError(MuserError):
    """A well-formed file that this engine will not run: unknown architecture, missing tensor."""

    code = "model"
    exit_status = 4


class DeviceError(MuserError):
    """A device, compiler, kernel library or conformance run that is missing or failed."""

    code = "device"
    exit_status = 5


class DeviceLost(DeviceError):
    """A device that answers nothing any more in this process: it must be started again."""

    code = "device_lost"


class ArithmeticFault(MuserError):
    """A row that left the finite numbers: no answer is given instead of a wrong one."""

    code = "arithmetic"
    exit_status = 6


class LimitError(MuserError):
    """A request larger than a limit that was known before work started."""

    code = "limit"
    exit_status = 7


class FetchError(MuserError):
    """A download that failed or whose bytes are not the pinned ones."""

    code = "fetch"
    exit_status = 8


class StorageError(MuserError):
    """A file, a folder or a stream that the system does not let us read or write."""

    code = "storage"
    exit_status = 9


class WrongTokens(MuserError):
    """A measured run that did not compute what it should have: no speed is told."""

    code = "wrong_tokens"
    exit_status = 10


class BusyError(MuserError):
    """A machine that is busy, or a measurement that is already running."""

    code = "busy"
    exit_status = 11


class Cancelled(MuserError):
    """Work stopped because its caller asked for it."""

    code = "cancelled"
    exit_status = 130
