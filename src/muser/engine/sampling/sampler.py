"""`Sampler`: one request's chain of stages, its generators and what it remembers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from muser.engine.sampling import draws, rng
from muser.engine.sampling.candidates import F32, I64, Candidates
from muser.engine.sampling.parameters import Sampling
from muser.errors import ArithmeticFault, UsageError

if TYPE_CHECKING:
    from muser.engine.sampling.history import Breakers
    from muser.engine.sampling.stages import Stage


@dataclass(frozen=True)
class SamplerState:
    """All that changes in a sampler from token to token."""

    draws: rng.Snapshot
    xtc: rng.Snapshot
    ending: tuple[float, ...]


class Sampler:
    """Chooses tokens for one request.

    `stop_ids` are the model's ends of text, banned by `ignore_eos`; `breakers` the tokens of
    `dry_breakers` (see `breaker_tokens`). Raises UsageError where a parameter needs what is
    missing.
    """

    def __init__(
        self,
        sampling: Sampling,
        stop_ids: Collection[int] = frozenset(),
        breakers: "Breakers | None" = None,
    ) -> None:
        _check_needs(sampling, stop_ids, breakers)
        unseeded = sampling.seed is None or sampling.seed < 0
        self.sampling = sampling
        self.seed: int = rng.fresh_seed() if unseeded else int(sampling.seed or 0)
        self._draws = rng.Mt19937(self.seed)
        self._xtc = rng.Mt19937(self.seed)
        self._chain = _chain(sampling, self._xtc, breakers or {})
        self._ending = _ending(sampling)
        self._ids: I64 = np.arange(0, dtype=np.int64)
        self._stop_ids = stop_ids if sampling.ignore_eos else ()

    @property
    def takes_first(self) -> bool:
        """Whether the choice is the first token in token order, whatever the logits and history."""
        plain = self.sampling.greedy and not self._chain
        return plain and not self.sampling.logit_bias and not self._stop_ids

    def pick(self, logits: F32, history: Sequence[int]) -> int:
        """The next token's id, from logits f32[vocab] and all tokens so far, prompt included.

        Uses one u64 draw, none where `sampling.greedy`. Raises ArithmeticFault if a logit is not
        finite or a stage makes it so, UsageError if every token is banned or a biased token is
        not in the vocabulary.
        """
        assert logits.dtype == np.float32
        assert logits.ndim == 1
        assert logits.size > 0
        if not np.isfinite(logits).all():
            raise ArithmeticFault(
                "A logit is not a finite number.",
                "The model or the kernels are at fault: check the file and the device.",
            )
        given = self._allowed(logits)
        for stage in self._chain:
            given = stage(given, history)
        if self.sampling.greedy:
            return given.first()
        return self._ending(given, self._draws.next_u64())

    def snapshot(self) -> SamplerState:
        """The state before the next token, for `restore`."""
        return SamplerState(self._draws.snapshot(), self._xtc.snapshot(), self._ending.state)

    def restore(self, state: SamplerState) -> None:
        """Choose on as this sampler would have when `state` was taken."""
        self._draws.restore(state.draws)
        self._xtc.restore(state.xtc)
        self._ending.state = state.ending

    def _allowed(self, logits: F32) -> Candidates:
        if self._ids.size != logits.size:
            self._ids = np.arange(logits.size, dtype=np.int64)
        given = Candidates(self._ids, logits, in_order=False)
        bias = self.sampling.logit_bias
        if not bias and not self._stop_ids:
            return given
        if outside := [token for token in bias if token >= logits.size]:
            raise UsageError(
                f"--logit-bias names token {min(outside)}, but the vocabulary has {logits.size}.",
                f"Give ids from 0 to {logits.size - 1}.",
            )
        banned = {token for token, value in bias.items() if value == -np.inf}
        banned.update(token for token in self._stop_ids if token < logits.size)
        return _biased(given, {t: v for t, v in bias.items() if t not in banned}, banned)


def _biased(given: Candidates, bias: Mapping[int, float], banned: Collection[int]) -> Candidates:
    ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
    values = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))
    logits = given.logits.copy()
    with np.errstate(over="ignore"):
        logits[ids] += values
    if not np.isfinite(logits[ids]).all():
        raise ArithmeticFault(
            "A bias drives a logit out of the finite numbers.", "Give --logit-bias smaller values."
        )
    kept = np.ones(given.size, dtype=np.bool_)
    kept[list(banned)] = False
    if not kept.any():
        raise UsageError(
            "--logit-bias and --ignore-eos ban every token.", "Leave at least one token allowed."
        )
    return given.with_logits(logits).take(kept)


def _check_needs(
    sampling: Sampling, stop_ids: Collection[int], breakers: "Breakers | None"
) -> None:
    if sampling.ignore_eos and not stop_ids:
        raise UsageError(
            "--ignore-eos bans the model's ends of text, but the model names none.",
            "Leave --ignore-eos out.",
        )
    if sampling.uses_dry and sampling.dry_breakers and breakers is None:
        raise UsageError(
            "--dry-multiplier needs the tokens of --dry-breakers, which were not given.",
            "Pass breakers=breaker_tokens(...) to the sampler, or give no --dry-breakers.",
        )


def _chain(sampling: Sampling, xtc: rng.Mt19937, breakers: "Breakers") -> "tuple[Stage, ...]":
    """Nothing for a plain greedy choice, which needs none of the stages' modules."""
    if sampling.greedy and sampling.has_neutral_penalties and not sampling.uses_dry:
        return ()
    from muser.engine.sampling.chain import build_chain

    return build_chain(sampling, xtc, breakers)


def _ending(s: Sampling) -> draws.Draw:
    if s.mirostat:
        return draws.Mirostat(s.mirostat, s.mirostat_tau, s.mirostat_eta)
    if s.adaptive_p_target >= 0.0:
        return draws.Adaptive(s.adaptive_p_target, s.adaptive_p_decay)
    return draws.Plain()
