"""What forbids a proposal, whatever its plan says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rca.act.budget import Begun
from rca.act.journal import BEGUN, Proposal, State
from rca.act.policy import AgentPolicy
from rca.probability import probability

#: Records that leave their incident to another one.
_FREE: Final[frozenset[State]] = frozenset({"tried", "expired"})


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
    begun = [_begun(each, proposal.job) for each in others if each.state in BEGUN] + list(elsewhere)
    return policy.spent(proposal.nodes if proposal.takes_out else (), begun, at)


def _begun(record: Proposal, job: str) -> Begun:
    """An action of the journal."""
    return Begun(record.begun_at or record.at, record.nodes if record.takes_out else (), record.job == job)
