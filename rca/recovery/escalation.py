"""When to escalate from a light action to a heavy one: ski-rental.

Time is lost at an unknown rate for an unknown time. A heavy action costs once and ends the loss. Taking it
when the time lost equals its cost is never worse than twice what a planner with foresight would pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from rca.errors import InvalidInput

#: A lighter action costs at most this share of the next heavier one, or it is left out.
CHEAP = 0.1


@dataclass(frozen=True)
class Rung:
    """One action on the ladder of escalation.

    Attributes
    ----------
    one_off : float, seconds
    left : float
        Share of the loss that stays with the action, 0 to 1.
    """

    action: str
    one_off: float
    left: float


@dataclass(frozen=True)
class Ladder:
    """Actions from the lightest to the heaviest; the first is to do nothing.

    Attributes
    ----------
    rungs : tuple of Rung
        Each costs more than the one before it and leaves less of the loss.
    """

    rungs: tuple[Rung, ...]

    @classmethod
    def of(cls, actions: Iterable[Rung]) -> Ladder:
        """A ladder of the useful actions among some.

        An action that leaves no less than a cheaper one is left out. So is one that costs more than `CHEAP`
        of the next: both may have to be paid.

        Raises
        ------
        InvalidInput
            If a cost is negative or a share is outside 0 to 1.
        """
        given = sorted(actions, key=lambda rung: (rung.one_off, rung.left, rung.action))
        for rung in given:
            if not (0.0 <= rung.one_off < inf and 0.0 <= rung.left <= 1.0):
                raise InvalidInput(f"{rung.action}: cost {rung.one_off}, share left {rung.left}")
        useful: list[Rung] = [Rung("none", 0.0, 1.0)]
        for rung in given:
            if rung.left < useful[-1].left:
                useful.append(rung)
        kept: list[Rung] = []
        for rung in reversed(useful):
            if not kept or rung.one_off <= CHEAP * kept[-1].one_off or rung.action == "none":
                kept.append(rung)
        return cls(tuple(reversed(kept)))

    @property
    def bound(self) -> float:
        """Largest ratio to the cost with foresight: 2 if all actions before the last cost nothing."""
        paid, worst = 0.0, 1.0
        for rung in self.rungs:
            paid += rung.one_off
            if rung.one_off > 0:
                worst = max(worst, paid / rung.one_off)
        return 2.0 * worst

    def at(self, lost: float) -> int:
        """Index of the rung to be on.

        Parameters
        ----------
        lost : float, seconds
            What the job would have lost so far without any action, the coming step included.
        """
        paid = np.cumsum([rung.one_off for rung in self.rungs])
        totals = [cost + rung.left * lost for cost, rung in zip(paid, self.rungs, strict=True)]
        # The heavier of equal ones: the loss continues.
        return len(totals) - 1 - int(np.argmin(totals[::-1]))

    def cost(self, losses: Sequence[float]) -> float:
        """Seconds that this policy pays for a sequence of losses.

        Parameters
        ----------
        losses : sequence of float, seconds
            Predicted loss of every step without any action, known before the step.
        """
        total, lost, place = self.rungs[0].one_off, 0.0, 0
        for loss in losses:
            lost += loss
            wanted = self.at(lost)
            total += sum(rung.one_off for rung in self.rungs[place + 1 : wanted + 1])
            place = max(place, wanted)
            total += self.rungs[place].left * loss
        return total

    def best(self, losses: Sequence[float]) -> float:
        """Seconds that a planner with foresight pays: one action from the beginning."""
        lost = float(sum(losses))
        return min(rung.one_off + rung.left * lost for rung in self.rungs)


def escalate_after(one_off: float, lost_so_far: float, lost_per_step: float) -> int | None:
    """Steps from now until the time lost equals the cost of the heavy action; None if nothing is lost.

    Parameters
    ----------
    one_off, lost_so_far : float, seconds
    lost_per_step : float, seconds per step
        What is still lost with the light action.
    """
    if lost_per_step <= 0:
        return None
    return max(ceil((one_off - lost_so_far) / lost_per_step), 0)
