"""The flags of `muser run` that choose tokens: `muser.engine.Sampling`, with a line of help each.

The defaults are repeated here because `--help` must not import the engine; a test compares them.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from muser.cli.whole import whole

if TYPE_CHECKING:
    from muser.engine import Sampling

_GROUP = Group("Sampling", sort_key=2)
_RARE = Group("Sampling, rarely needed", sort_key=3)


def _flag(text: str, group: Group = _GROUP, names: tuple[str, ...] = ()) -> Parameter:
    return Parameter(name=names or None, help=text, group=group, negative=())


def _switch(text: str) -> Parameter:
    return Parameter(help=text, group=_GROUP, negative=(), show_default=False)


def _whole(text: str, group: Group = _GROUP, names: tuple[str, ...] = ()) -> Parameter:
    return Parameter(name=names or None, help=text, group=group, converter=whole)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """One field a flag, named as in `Sampling`."""

    temperature: Annotated[
        float,
        _flag("0 is greedy: always the likeliest token.", names=("--temperature", "--temp")),
    ] = 0.0
    top_k: Annotated[int, _whole("Draw among this many likeliest tokens; 0 is all.")] = 40
    top_p: Annotated[float, _flag("Draw among the likeliest with this share; 1 is all.")] = 0.95
    min_p: Annotated[float, _flag("Least weight, as a share of the likeliest's; 0 is off.")] = 0.05
    seed: Annotated[
        int | None,
        _whole("Seed of the draws; without one, a fresh one.", names=("--seed", "-s")),
    ] = None
    repeat_penalty: Annotated[float, _flag("Weaken tokens seen lately; 1 is off.")] = 1.0
    presence_penalty: Annotated[float, _flag("Subtract this from tokens seen lately.")] = 0.0
    frequency_penalty: Annotated[float, _flag("The same, once for each time.")] = 0.0
    repeat_last_n: Annotated[int, _whole("How many tokens count as lately; -1 is all.")] = 64
    ignore_eos: Annotated[bool, _switch("Never choose an end of text.")] = False
    typical_p: Annotated[float, _flag("Locally typical sampling; 1 is off.", _RARE)] = 1.0
    top_n_sigma: Annotated[float, _flag("Keep n deviations below the best.", _RARE)] = -1.0
    dry_multiplier: Annotated[float, _flag("DRY penalty's strength; 0 is off.", _RARE)] = 0.0
    dry_base: Annotated[float, _flag("DRY penalty's growth.", _RARE)] = 1.75
    dry_allowed_length: Annotated[int, _whole("DRY leaves repeats up to this alone.", _RARE)] = 2
    dry_last_n: Annotated[int, _whole("DRY looks back this far; -1 is all.", _RARE)] = 64
    xtc_probability: Annotated[float, _flag("Chance of dropping top choices.", _RARE)] = 0.0
    xtc_threshold: Annotated[float, _flag("Share from which a choice is top.", _RARE)] = 0.1
    dynatemp_range: Annotated[float, _flag("Temperature by entropy; 0 is off.", _RARE)] = 0.0
    dynatemp_exponent: Annotated[float, _flag("Its exponent.", _RARE)] = 1.0
    mirostat: Annotated[int, _whole("Mirostat version 1 or 2; 0 is off.", _RARE)] = 0
    mirostat_tau: Annotated[float, _flag("Mirostat's target surprise.", _RARE)] = 5.0
    mirostat_eta: Annotated[float, _flag("Mirostat's learning rate.", _RARE)] = 0.1
    adaptive_p_target: Annotated[float, _flag("Adaptive-p; below 0 is off.", _RARE)] = -1.0
    adaptive_p_decay: Annotated[float, _flag("Its memory.", _RARE)] = 0.9
    min_keep: Annotated[int, _whole("Fewest tokens that a stage leaves.", _RARE)] = 0

    def sampling(self) -> "Sampling":
        """The checked parameters. Raises `UsageError`."""
        from muser.engine import Sampling

        return Sampling(**asdict(self))
