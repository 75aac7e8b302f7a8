"""How often agents may act, and on how many nodes; the agent and the service ask with the same rules."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from rca.frozen import Frozen

DAY_SECONDS: Final = 86_400.0
#: Actions that steps exist for, and whether the nodes leave the job.
TAKES_OUT: Mapping[str, bool] = {
    "drain_node": True,
    "isolate_suspects": True,
    "replace_gpu": True,
    "restart_from_checkpoint": False,
}
Positive = Annotated[float, Field(gt=0.0, le=1e7, allow_inf_nan=False)]


@dataclass(frozen=True)
class Begun:
    """An action that was begun, by an agent with this journal or another one.

    Attributes
    ----------
    at : float
        Unix seconds.
    leaving : tuple of str
        Nodes that it takes out.
    of_job : bool
        Whether it was on the job of the action that is asked for.
    """

    at: float
    leaving: tuple[str, ...]
    of_job: bool


def leaving(action: str, nodes: Collection[str]) -> tuple[str, ...]:
    """The nodes that an action on some nodes takes out."""
    return tuple(nodes) if TAKES_OUT.get(action) else ()


class ActionBudget(Frozen):
    """What agents may begin on some jobs together.

    Attributes
    ----------
    cool_down_seconds : float
        Between two actions on one job.
    max_actions_per_day, max_nodes_per_day : int
        Of all jobs together, in any 24 hours.
    """

    cool_down_seconds: Positive = 3600.0
    max_actions_per_day: Annotated[int, Field(ge=1, le=100)] = 3
    max_nodes_per_day: Annotated[int, Field(ge=0, le=10_000)] = 2

    @property
    def counted_seconds(self) -> float:
        """Earlier actions do not count."""
        return max(DAY_SECONDS, self.cool_down_seconds)

    def spent(self, new: Collection[str], begun: Sequence[Begun], at: float) -> str | None:
        """Why no other action may begin; None if it may.

        Parameters
        ----------
        new : collection of str
            Nodes that it would take out.
        at : float
            Now, Unix seconds.
        """
        recent = [each for each in begun if each.at > at - DAY_SECONDS]
        if len(recent) >= self.max_actions_per_day:
            return (
                f"{len(recent)} actions were begun within a day; the policy allows {self.max_actions_per_day}"
            )
        out = {node for each in recent for node in each.leaving}
        total = len(out | set(new))
        if total > len(out) and total > self.max_nodes_per_day:
            return f"{total} nodes would leave within a day; the policy allows {self.max_nodes_per_day}"
        cool = max((each.at for each in begun if each.of_job), default=-math.inf) + self.cool_down_seconds
        return f"the job had an action already, and cools down for {cool - at:,.0f} s" if cool > at else None
