"""What a job can do: which actions are possible in it, and which of them need code and a restart first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rca.recovery.option import Option, Rejection
from rca.recovery.site import Library, Site
from rca.recovery.situation import Situation
from rca.window.causes import CAUSES, CauseOwner


@dataclass(frozen=True)
class Needs:
    """What an action needs of a job.

    Attributes
    ----------
    library : str or None
        Of `rca.runtime`, which has to run in the training loop.
    replicated : bool
        Every worker holds all parameters: an update can leave workers out, or come from some of them.
    whole_workers : bool
        Each worker is one rank: no tensor parallelism.
    """

    library: Library | None = None
    replicated: bool = False
    whole_workers: bool = False


#: Actions with needs; the others are possible in every job.
NEEDS: Final[Mapping[str, Needs]] = {
    "adjust_batch_sizes": Needs("antdt"),
    "backup_workers": Needs("star", replicated=True, whole_workers=True),
    "grouped_synchronisation": Needs("star", replicated=True, whole_workers=True),
    "straggler_aware_all_reduce": Needs("stragglar", replicated=True, whole_workers=True),
}
#: Who carries out an action; the workload's owner does the others.
INFRASTRUCTURE: Final = frozenset(
    {
        "call_network_team",
        "call_storage_team",
        "correct_communication_settings",
        "degraded_link_collectives",
        "drain_node",
        "evict_other_process",
        "isolate_suspects",
        "replace_gpu",
        "reroute",
    }
)
CODE_RISK: Final = "needs code in the training loop and a restart"


def impossible(option: Option, site: Site) -> Rejection | None:
    """Why a job or its site cannot do an action; None if it can, or if its capabilities are not known."""
    needs = NEEDS.get(option.action, Needs())
    reason = None
    if option.action in site.unavailable:
        reason = "this site cannot do it (`unavailable` of the site)"
    elif needs.replicated and site.parameters == "sharded":
        reason = "parameters are sharded (FSDP, ZeRO): every rank takes part in every update"
    elif needs.whole_workers and (site.tensor_parallel or 1) > 1:
        reason = f"tensor parallelism of {site.tensor_parallel}: the ranks of a worker cannot leave it"
    return None if reason is None else Rejection(action=option.action, reason=reason)


def needs_code(action: str, site: Site) -> bool:
    """Whether an action needs a library that does not run in the job."""
    library = NEEDS.get(action, Needs()).library
    return library is not None and library not in (site.libraries or ())


def with_restart(option: Option, site: Site) -> Option:
    """An option with the price of a restart, if it needs a change of the code."""
    if not needs_code(option.action, site):
        return option
    risk = CODE_RISK if option.risk.startswith("none") else f"{option.risk}; {CODE_RISK}"
    cost = option.one_off_seconds + site.restart_cost
    return option.model_copy(update={"weight": "heavy", "one_off_seconds": cost, "risk": risk})


def by_owner(option: Option) -> bool:
    """Whether the owner of one of its causes carries out an action."""
    actor: CauseOwner = "infrastructure" if option.action in INFRASTRUCTURE else "workload"
    owners = {CAUSES[cause].owner for cause in option.causes if cause in CAUSES}
    return bool(owners & {actor, "either"})


def net_seconds(option: Option, situation: Situation) -> float:
    """What an action surely gains: the lower end of its gain until the job ends, less its cost, seconds.

    Where the end of the job is not known, the slowness counts to last as long again as it has lasted.
    """
    low = 0.0 if option.interval is None else max(option.interval[0], 0.0)
    before = situation.site.seconds_lost / situation.lost if situation.lost > 0 else 0.0
    lasted = situation.steps_lost + before
    steps = lasted if situation.site.steps_left is None else situation.site.steps_left
    return option.chance * low * steps - option.one_off_seconds
