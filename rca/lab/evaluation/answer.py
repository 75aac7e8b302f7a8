"""The answer of any method to a window, in the form that is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from rca.diagnosis.result import Diagnosis

Aspect = Literal["ranks", "type", "pattern", "causes", "seconds", "confidence"]
EVERY_ASPECT: frozenset[Aspect] = frozenset(get_args(Aspect))


@dataclass(frozen=True)
class NamedCause:
    """One cause a method names.

    Attributes
    ----------
    cause : str
        Catalogue id, or "unknown".
    seconds_per_step : float, seconds
        NaN if the method gives no cost.
    interval : tuple of float, optional, seconds
        Interval of the cost, if the method gives one.
    """

    cause: str
    ranks: frozenset[int]
    seconds_per_step: float = float("nan")
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class MethodAnswer:
    """A verdict on one window.

    Attributes
    ----------
    mode : {"healthy", "fail_slow", "fail_stop"}
    ranks : frozenset of int
        All blamed ranks.
    causes : tuple of NamedCause
        The likeliest or costliest first.
    straggler_type, pattern : str or None
        Of the first straggler.
    onset : int, optional
        Training step in which the first straggler starts to be late.
    confidence : float
        Probability of `mode` by the method; NaN if it gives none.
    mode_set : frozenset of str
        Failure modes that are not ruled out; empty if the method gives no sets.
    cause_sets : tuple of (frozenset of int, frozenset of str)
        Ranks of each straggler and its causes that are not ruled out; empty as well.
    unfamiliar : float
        1 if the method flags the window as unlike its training windows, else 0; NaN if it does not test it.
    aspects : frozenset of str
        Parts of an answer that the method gives. Other parts are not scored.
    """

    mode: str
    ranks: frozenset[int] = frozenset()
    causes: tuple[NamedCause, ...] = ()
    straggler_type: str | None = None
    pattern: str | None = None
    onset: int | None = None
    confidence: float = float("nan")
    abstained: bool = False
    mode_set: frozenset[str] = frozenset()
    cause_sets: tuple[tuple[frozenset[int], frozenset[str]], ...] = ()
    unfamiliar: float = float("nan")
    aspects: frozenset[Aspect] = EVERY_ASPECT

    @property
    def names_no_cause(self) -> bool:
        """Whether the answer is fail-slow without a cause."""
        return self.mode == "fail_slow" and not self.causes

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis) -> MethodAnswer:
        """The judged part of a diagnosis."""
        first = diagnosis.stragglers[0] if diagnosis.stragglers else None
        began = [found.first_step for found in diagnosis.stragglers if found.first_step is not None]
        flagged = diagnosis.quality.out_of_distribution
        return cls(
            mode=diagnosis.failure_mode,
            ranks=frozenset(rank for found in diagnosis.stragglers for rank in found.ranks),
            causes=tuple(
                NamedCause(
                    cause.cause,
                    frozenset(cause.ranks),
                    cause.seconds_per_step or 0.0,
                    cause.interval or (0.0, 0.0),
                )
                for cause in diagnosis.causes
            ),
            straggler_type=None if first is None else first.straggler_type,
            pattern=None if first is None else first.pattern,
            onset=min(began, default=None),
            confidence=diagnosis.failure_mode_probability[diagnosis.failure_mode],
            abstained=diagnosis.abstained,
            mode_set=frozenset(diagnosis.failure_mode_set),
            cause_sets=tuple(
                (frozenset(found.ranks), frozenset(found.plausible_causes))
                for found in diagnosis.stragglers
                if found.plausible_causes
            ),
            unfamiliar=float("nan") if flagged is None else float(flagged),
        )
