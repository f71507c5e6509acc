"""The stages of a request's chain, built from its parameters in their order."""

from collections.abc import Callable, Mapping

from muser.engine.sampling import rng, stages
from muser.engine.sampling.history import Breakers, Dry, Penalties
from muser.engine.sampling.parameters import Sampling
from muser.engine.sampling.stages import Stage

# What mirostat and a greedy choice leave of the order.
_KEEPERS = ("penalties", "dry")


def build_chain(sampling: Sampling, xtc: rng.Mt19937, breakers: Breakers) -> tuple[Stage, ...]:
    """`xtc` draws for that stage, `breakers` are DRY's."""
    order = sampling.order
    if sampling.greedy:
        order = tuple(name for name in order if name in _KEEPERS)
    elif sampling.mirostat:
        order = (*(name for name in order if name in _KEEPERS), "temperature")
    made = (_BUILDERS[name](sampling, xtc, breakers) for name in order)
    return tuple(stage for stage in made if stage is not None)


def _penalties(s: Sampling, _xtc: rng.Mt19937, _breakers: Breakers) -> Stage | None:
    if s.has_neutral_penalties or s.repeat_last_n == 0:
        return None
    return Penalties(s.repeat_last_n, s.repeat_penalty, s.presence_penalty, s.frequency_penalty)


def _dry(s: Sampling, _xtc: rng.Mt19937, breakers: Breakers) -> Stage | None:
    if not s.uses_dry:
        return None
    used = breakers if s.dry_breakers else {}
    return Dry(s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_last_n, used)


def _xtc(s: Sampling, xtc: rng.Mt19937, _breakers: Breakers) -> Stage | None:
    if s.xtc_probability <= 0.0 or s.xtc_threshold > 0.5:
        return None
    return stages.Xtc(s.xtc_probability, s.xtc_threshold, s.min_keep, xtc)


def _temperature(s: Sampling, _xtc: rng.Mt19937, _breakers: Breakers) -> Stage | None:
    if s.dynatemp_range > 0.0:
        return stages.DynamicTemperature(s.temperature, s.dynatemp_range, s.dynatemp_exponent)
    return stages.Temperature(s.temperature) if s.temperature != 1.0 else None


_BUILDERS: Mapping[str, Callable[[Sampling, rng.Mt19937, Breakers], Stage | None]] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": lambda s, _x, _b: stages.TopNSigma(s.top_n_sigma) if s.top_n_sigma > 0 else None,
    "top_k": lambda s, _x, _b: stages.TopK(s.top_k) if s.top_k > 0 else None,
    "typ_p": lambda s, _x, _b: stages.Typical(s.typical_p, s.min_keep) if s.typical_p < 1 else None,
    "top_p": lambda s, _x, _b: stages.TopP(s.top_p, s.min_keep) if s.top_p < 1 else None,
    "min_p": lambda s, _x, _b: stages.MinP(s.min_p, s.min_keep) if s.min_p > 0 else None,
    "xtc": _xtc,
    "temperature": _temperature,
}
