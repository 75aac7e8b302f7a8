"""A recovery action as an option of a plan: gain, cost, risk, and what a person does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from rca.frozen import Frozen
from rca.recovery.situation import BlamedCause, Interval, Situation

#: Light actions change the running job; heavy ones stop it or take machines out of service.
Weight = Literal["none", "light", "heavy"]
#: `attribution`: the cost of the causes that it removes. `replay`: the job replayed with the action.
#: `published`: a published formula on this job's times.
Basis = Literal["attribution", "replay", "published", "unknown"]
Chance = Annotated[float, Field(ge=0.0, le=1.0)]


class Option(Frozen):
    """One applicable action.

    Attributes
    ----------
    weight : {"none", "light", "heavy"}
    causes : list of str
        That it removes or bypasses.
    ranks, nodes : list
        It acts on these.
    seconds_per_step_saved : float or None
        If the diagnosis is right; None where it is unknown.
    basis : {"attribution", "replay", "published", "unknown"}
    takes_out : bool
        Whether the nodes leave the job and are not replaced by the action itself.
    chance : float
        Probability that the action acts on the true cause.
    one_off_seconds : float
        Time of the job that the action costs once.
    break_even_steps : int or None
        Steps until the saved time exceeds the one-off cost.
    escalate_after_steps : int or None
        Heavy actions: steps from now after which the time lost equals the cost (ski-rental).
    risk : str
        For convergence or for the cluster.
    instruction : str
        What a person does.
    correction : float
        Observed over predicted gain of earlier uses, which the saving includes.
    """

    action: str
    weight: Weight
    causes: list[str]
    ranks: list[int]
    nodes: list[str]
    seconds_per_step_saved: float | None
    interval: Interval | None
    basis: Basis
    takes_out: bool = False
    chance: Chance
    one_off_seconds: Annotated[float, Field(ge=0.0)]
    break_even_steps: int | None
    escalate_after_steps: int | None = None
    risk: str
    instruction: str
    correction: Annotated[float, Field(ge=0.0)] = 1.0


class Rejection(Frozen):
    """An action that does not apply or must not be taken, and why."""

    action: str
    reason: str


@dataclass(frozen=True)
class Gain:
    """What an action is predicted to save, seconds per step."""

    saved: float | None
    interval: Interval | None
    basis: Basis


class RecoveryAction(Protocol):
    """One recovery action."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> Weight: ...

    def options(self, situation: Situation) -> list[Option | Rejection]:
        """The ways to take the action in a situation, or one reason against it; never empty."""
        ...


class SingleAction:
    """An action with one option at most."""

    name: str

    def options(self, situation: Situation) -> list[Option | Rejection]:
        """The option, or the reason against it."""
        found = self._judged(situation)
        return [Rejection(action=self.name, reason=found) if isinstance(found, str) else found]

    def _judged(self, situation: Situation) -> Option | str:
        """The option, or the reason against it as text."""
        raise NotImplementedError


UNKNOWN_GAIN = Gain(None, None, "unknown")


def option(
    action: RecoveryAction,
    gain: Gain,
    *,
    chance: float,
    causes: Iterable[str] = (),
    ranks: Iterable[int] = (),
    nodes: Iterable[str] = (),
    one_off: float = 0.0,
    risk: str,
    instruction: str,
    takes_out: bool = False,
) -> Option:
    """An option; the plan adds break-even, correction and escalation."""
    return Option(
        action=action.name,
        weight=action.weight,
        causes=sorted(set(causes)),
        ranks=sorted(set(ranks)),
        nodes=sorted(set(nodes)),
        seconds_per_step_saved=gain.saved,
        interval=gain.interval,
        basis=gain.basis,
        takes_out=takes_out,
        chance=min(max(chance, 0.0), 1.0),
        one_off_seconds=one_off,
        break_even_steps=None,
        risk=risk,
        instruction=instruction,
    )


def removal(fault: BlamedCause) -> Gain:
    """The gain of removing one fault."""
    return Gain(fault.saved, fault.interval, "unknown" if fault.saved is None else "attribution")
