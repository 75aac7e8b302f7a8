"""What forbids a proposal, whatever its plan says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rca.act.journal import BEGUN, Proposal, State
from rca.act.policy import AgentPolicy
from rca.probability import probability

DAY_SECONDS: Final = 86_400.0
#: Records that leave their incident to another one.
_FREE: frozenset[State] = frozenset({"tried", "expired"})


def forbidden(policy: AgentPolicy, proposal: Proposal, others: Sequence[Proposal], at: float) -> str | None:
    """The first guard that forbids a proposal beside other records; None if it may be carried out.

    Parameters
    ----------
    others : sequence of Proposal
        Records of the journal; the proposal itself does not count.
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
    begun = [each for each in others if each.state in BEGUN and each.begun_at is not None]
    recent = [each for each in begun if each.begun_at is not None and each.begun_at > at - DAY_SECONDS]
    if len(recent) >= policy.max_actions_per_day:
        return (
            f"{len(recent)} actions were begun within a day; the policy allows {policy.max_actions_per_day}"
        )
    out = {node for each in recent if each.takes_out for node in each.nodes}
    new = set(proposal.nodes) - out if proposal.takes_out else set()
    if new and len(out | new) > policy.max_nodes_per_day:
        return (
            f"{len(out | new)} nodes would leave within a day; the policy allows {policy.max_nodes_per_day}"
        )
    return _cooling(policy, proposal, begun, at)


def _cooling(policy: AgentPolicy, proposal: Proposal, begun: Sequence[Proposal], at: float) -> str | None:
    times = [each.begun_at for each in begun if each.job == proposal.job and each.begun_at is not None]
    left = max(times, default=-policy.cool_down_seconds) + policy.cool_down_seconds - at
    return f"the job had an action already, and cools down for {left:,.0f} s" if times and left > 0 else None
