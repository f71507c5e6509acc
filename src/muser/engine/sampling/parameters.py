"""`Sampling`: every parameter of the choice of a token, checked when it is made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from muser.errors import UsageError

# Upstream's default order, by upstream's names.
STAGES = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
_F32_MAX = float.fromhex("0x1.fffffep+127")
_F32_MIN_NORMAL = 2.0**-126
_INT_MAX = 2**31 - 1

# name: least, greatest, both allowed.
_WHOLE = {
    "top_k": (-1, _INT_MAX),
    "repeat_last_n": (-1, _INT_MAX),
    "dry_allowed_length": (0, _INT_MAX),
    "dry_last_n": (-1, _INT_MAX),
    "mirostat": (0, 2),
    "min_keep": (0, _INT_MAX),
}
_REAL = {
    "temperature": (0.0, _F32_MAX),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "top_n_sigma": (-1.0, _F32_MAX),
    "repeat_penalty": (_F32_MIN_NORMAL, _F32_MAX),
    "presence_penalty": (-_F32_MAX, _F32_MAX),
    "frequency_penalty": (-_F32_MAX, _F32_MAX),
    "dry_multiplier": (0.0, _F32_MAX),
    "dry_base": (1.0, _F32_MAX),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dynatemp_range": (0.0, _F32_MAX),
    "dynatemp_exponent": (0.0, 1000.0),
    "mirostat_tau": (0.0, 1000.0),
    "mirostat_eta": (0.0, 1000.0),
    "adaptive_p_target": (-1.0, 1.0),
    "adaptive_p_decay": (0.0, 0.99),
}


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. The default is greedy: the first token in token-key order.

    Raises UsageError, naming the flag and its range, for a value that has no meaning.
    `docs/sampling.md` says what each stage does.
    """

    # 0: no stage but penalties and DRY applies, and nothing is drawn (unless dynatemp_range,
    # mirostat or adaptive_p_target asks for it).
    temperature: float = 0.0
    top_k: int = 40  # below 1: all
    top_p: float = 0.95  # 1: off
    min_p: float = 0.05  # 0: off
    typical_p: float = 1.0  # 1: off
    top_n_sigma: float = -1.0  # 0 and below: off
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64  # 0: off; −1: the whole history
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_last_n: int = 64  # 0: off; −1: the whole history
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0  # 0: off
    xtc_threshold: float = 0.1  # above 0.5: off
    dynatemp_range: float = 0.0  # 0: off
    dynatemp_exponent: float = 1.0
    mirostat: int = 0  # 0: off; 1 or 2: that version, in place of the stages that thin out
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_p_target: float = -1.0  # below 0: off
    adaptive_p_decay: float = 0.9
    min_keep: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)  # −inf: banned
    ignore_eos: bool = False
    seed: int | None = None  # None and −1: from the operating system
    order: tuple[str, ...] = STAGES

    def __post_init__(self) -> None:
        for name, (least, most) in _WHOLE.items():
            _check_whole(name, getattr(self, name), least, most)
        for name, (low, high) in _REAL.items():
            _check_real(name, getattr(self, name), low, high)
        if 0.0 < self.temperature < _F32_MIN_NORMAL:
            raise _refused("temperature", self.temperature, "0 or at least 1.2e-38")
        if self.mirostat and self.adaptive_p_target >= 0.0:
            raise UsageError(
                "--mirostat and --adaptive-p-target both want the last word.",
                "Set --mirostat 0 or leave --adaptive-p-target out.",
            )
        self._check_others()
        # Copies of what the caller may still change.
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        object.__setattr__(self, "order", tuple(self.order))
        object.__setattr__(self, "dry_breakers", tuple(self.dry_breakers))

    def _check_others(self) -> None:
        if self.seed is not None:
            _check_whole("seed", self.seed, -1, 2**32 - 1)
        if not isinstance(self.ignore_eos, bool):
            raise _refused("ignore_eos", self.ignore_eos, "true or false")
        for token, bias in self.logit_bias.items():
            _check_whole("logit_bias", token, 0, _INT_MAX)
            if bias != -math.inf:
                _check_real("logit_bias", bias, -_F32_MAX, _F32_MAX)
        if any(not isinstance(word, str) or not word for word in self.dry_breakers):
            raise _refused("dry_breakers", list(self.dry_breakers), "texts of one letter or more")
        unknown = [name for name in self.order if name not in STAGES]
        if unknown or len(set(self.order)) != len(self.order):
            raise _refused("order", list(self.order), f"each at most once of {', '.join(STAGES)}")

    @property
    def greedy(self) -> bool:
        """Nothing is drawn: the first token after bias, penalties and DRY is the choice."""
        drawing = self.dynatemp_range > 0.0 or self.mirostat or self.adaptive_p_target >= 0.0
        return self.temperature == 0.0 and not drawing

    @property
    def uses_dry(self) -> bool:
        """DRY applies, so that its breakers' tokens are needed."""
        return self.dry_multiplier > 0.0 and self.dry_last_n != 0 and "dry" in self.order

    @property
    def has_neutral_penalties(self) -> bool:
        """The three penalties change nothing."""
        return (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) == (1.0, 0, 0)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _refused(name, value, f"a whole number from {least} to {most}")


def _check_real(name: str, value: object, low: float, high: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # type: ignore[operator]
        raise _refused(name, value, f"a number from {low:g} to {high:g}")


def _refused(name: str, value: object, remedy: str) -> UsageError:
    flag = "--" + name.replace("_", "-")
    return UsageError(f"{flag} cannot be {value!r}.", f"Give {remedy}.")
