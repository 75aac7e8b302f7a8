"""What any method says about a window, in the one form that is judged."""

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
    ranks : frozenset of int
    seconds_per_step : float, seconds
        NaN where the method does not price.
    interval : tuple of float, optional, seconds
        Of the price, where the method gives one.
    """

    cause: str
    ranks: frozenset[int]
    seconds_per_step: float = float("nan")
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Answer:
    """A verdict on one window.

    Attributes
    ----------
    mode : {"healthy", "fail_slow", "fail_stop"}
    ranks : frozenset of int
        All ranks that are blamed.
    causes : tuple of NamedCause
        The likeliest or costliest first.
    straggler_type, pattern : str or None
        Of the first straggler.
    onset : int, optional
        Training step in which the first of the stragglers began to be late.
    confidence : float
        Probability that the method gives its own `mode`; NaN if it gives none.
    abstained : bool
    mode_set : frozenset of str
        Failure modes that are not ruled out; empty where the method gives no sets.
    cause_sets : tuple of (frozenset of int, frozenset of str)
        Per straggler its ranks and the causes not ruled out for them; empty likewise.
    unfamiliar : float
        1 where the method says that the window is unlike those it learned from, 0 where it says it is like
        them; NaN where it does not say.
    aspects : frozenset of str
        What the method answers at all. What it never answers is not scored instead of scored as wrong.
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
        """Whether it says that the job is slow, and of no cause that it might be why."""
        return self.mode == "fail_slow" and not self.causes

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis) -> Answer:
        """The judged part of a diagnosis."""
        first = diagnosis.stragglers[0] if diagnosis.stragglers else None
        began = [found.first_step for found in diagnosis.stragglers if found.first_step is not None]
        flagged = diagnosis.quality.out_of_distribution
        return cls(
            mode=diagnosis.failure_mode,
            ranks=frozenset(rank for found in diagnosis.stragglers for rank in found.ranks),
            causes=tuple(
                NamedCause(cause.cause, frozenset(cause.ranks), cause.seconds_per_step, cause.interval)
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
