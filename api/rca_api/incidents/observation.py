"""What a diagnosed window says about an incident: its verdict, the fault and the place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["healthy", "sick", "suspect", "unsure"]


@dataclass(frozen=True)
class Subject:
    """Fault and place; `place` holds names of nodes, else of ranks, and is empty if not known."""

    failure_mode: str
    cause: str | None
    place: tuple[str, ...] = ()

    def is_same_fault(self, other: Subject) -> bool:
        """Whether failure mode and cause are the same."""
        return (self.failure_mode, self.cause) == (other.failure_mode, other.cause)

    def meets(self, other: Subject) -> bool:
        """Whether both are of one failure mode, and may be at the same place."""
        apart = self.place and other.place and set(self.place).isdisjoint(other.place)
        return self.failure_mode == other.failure_mode and not apart

    def agrees(self, other: Subject) -> bool:
        """Whether both may be the same fault: equal cause, and places that are not disjoint."""
        return self.is_same_fault(other) and self.meets(other)

    def may_be(self, other: Subject) -> bool:
        """Whether both may be the same fault, where the cause of one may be open."""
        return self.meets(other) and (None in (self.cause, other.cause) or self.cause == other.cause)


@dataclass(frozen=True)
class Observation:
    """One diagnosed window of a job.

    Attributes
    ----------
    start, end : float
        Bounds of the window, Unix seconds.
    subject : Subject or None
        Fault of a faulty window or a suspect.
    probability : float
        Probability of its failure mode.
    untimed : bool
        Whether no step was timed, so that exporters alone show it.
    over : float or None
        When its fault was over, Unix seconds; None if it goes on, or ended shortly before the window did.
    probably_healthy : bool
        Whether the diagnosis abstained, and the job is probably healthy.
    """

    diagnosis_id: str
    start: float
    end: float
    verdict: Verdict
    subject: Subject | None = None
    probability: float = 0.0
    untimed: bool = False
    over: float | None = None
    probably_healthy: bool = False

    @property
    def order(self) -> tuple[float, float]:
        """Place among the windows of the job."""
        return self.end, self.start
