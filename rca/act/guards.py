"""What forbids a proposal, whatever its plan says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rca.act.journal import BEGUN, Proposal, State
from rca.act.policy import AgentPolicy
from rca.probability import probability

DAY_SECONDS: Final = 86_400.0
#: Records that leave their incident to another one.
_FREE: frozenset[State] = frozenset({"tried", "expired"})


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
        Whether it was on the job of the proposal.
    """

    at: float
    leaving: tuple[str, ...]
    of_job: bool

    @classmethod
    def held(cls, record: Proposal, job: str) -> Begun:
        """An action of the journal."""
        return cls(record.begun_at or record.at, record.nodes if record.takes_out else (), record.job == job)


def forbidden(
    policy: AgentPolicy, proposal: Proposal, others: Sequence[Proposal], elsewhere: Sequence[Begun], at: float
) -> str | None:
    """The first guard that forbids a proposal beside other records; None if it may be carried out.

    Parameters
    ----------
    others : sequence of Proposal
        Records of the journal; the proposal itself does not count.
    elsewhere : sequence of Begun
        Actions of other agents, and of journals that are gone.
    at : float
        Now, Unix seconds.
    """
    others = [each for each in others if each.id != proposal.id]
    if proposal.action not in policy.actions:
        return f"the policy does not allow {proposal.action}"
    if proposal.chance < policy.min_chance:
        asked = probability(policy.min_chance)
        return f"it acts on the true cause with {probability(proposal.chance)}; the policy asks for {asked}"
    if any(each.incident == proposal.incident and each.state not in _FREE for each in others):
        return "the incident has an action already"
    begun = [Begun.held(each, proposal.job) for each in others if each.state in BEGUN] + list(elsewhere)
    recent = [each for each in begun if each.at > at - DAY_SECONDS]
    if len(recent) >= policy.max_actions_per_day:
        return (
            f"{len(recent)} actions were begun within a day; the policy allows {policy.max_actions_per_day}"
        )
    out = {node for each in recent for node in each.leaving}
    new = set(proposal.nodes) - out if proposal.takes_out else set()
    if new and len(out | new) > policy.max_nodes_per_day:
        return (
            f"{len(out | new)} nodes would leave within a day; the policy allows {policy.max_nodes_per_day}"
        )
    cool = max((each.at for each in begun if each.of_job), default=-math.inf) + policy.cool_down_seconds
    return f"the job had an action already, and cools down for {cool - at:,.0f} s" if cool > at else None
