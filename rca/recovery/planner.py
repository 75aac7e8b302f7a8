"""The plan: every action as an option or with the reason against it, guarded and in order."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from rca.recovery.all_reduce import StragglerAwareAllReduce
from rca.recovery.checkpoints import CheckpointInterval
from rca.recovery.escalation import Ladder, Rung, escalate_after
from rca.recovery.isolation import IsolateSuspects
from rca.recovery.network import DegradedLinkCollectives, Reroute
from rca.recovery.option import Action, Option, Rejection
from rca.recovery.remedies import REMEDIES
from rca.recovery.situation import Interval, Situation
from rca.recovery.synchronisation import AdjustLearningRate, BackupWorkers, GroupedSynchronisation
from rca.recovery.work_shares import AdjustBatchSizes

#: Actions that need the window's step times for their price.
REPLAYED: tuple[Action, ...] = (
    AdjustBatchSizes(),
    BackupWorkers(),
    GroupedSynchronisation(),
    StragglerAwareAllReduce(),
    CheckpointInterval(),
)
#: All actions, in the order of their mention where gains are equal.
ACTIONS: tuple[Action, ...] = (
    *REMEDIES,
    *REPLAYED,
    DegradedLinkCollectives(),
    AdjustLearningRate(),
    Reroute(),
    IsolateSuspects(),
)

_REMOVES_A_CAUSE = frozenset(remedy.name for remedy in REMEDIES)


class Plan(BaseModel):
    """What to do about a diagnosis.

    Attributes
    ----------
    mode : {"healthy", "fail_slow", "fail_stop"}
    seconds_per_step_lost : float
        Without any action.
    interval : tuple of float
    options : list of Option
        Light actions before heavy ones; among these what removes a cause comes first, then the larger
        expected saving.
    first : str
        The action to take now; "none" where waiting is best.
    why : str
        Why this one, in a sentence.
    rejected : list of Rejection
        Every other action with the reason against it.
    competitive_ratio : float
        The escalation costs at most this many times what foresight would pay.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: str
    seconds_per_step_lost: float
    interval: Interval
    options: list[Option]
    first: str
    why: str
    rejected: list[Rejection]
    competitive_ratio: float


def plan(situation: Situation, actions: Sequence[Action] = ACTIONS, *, priced: Sequence[Option] = ()) -> Plan:
    """Judge every action in a situation.

    Parameters
    ----------
    situation : Situation
    actions : sequence of Action
        By default all.
    priced : sequence of Option
        Replayed options of an earlier plan, for actions that cannot be replayed now.
    """
    options: list[Option] = []
    rejected: list[Rejection] = []
    for action in actions:
        known: list[Option | Rejection] = [each for each in priced if each.action == action.name]
        for found in known or action.options(situation):
            kept = found if isinstance(found, Rejection) else guarded(found, situation)
            if isinstance(kept, Option):
                options.append(kept)
            else:
                rejected.append(kept)
    options.sort(key=_order)
    options = [_with_escalation(each, options, situation) for each in options]
    first, why = _first(options, situation)
    ladder = ladder_of(options, situation)
    return Plan(
        mode=situation.mode,
        seconds_per_step_lost=situation.lost,
        interval=situation.lost_interval,
        options=options,
        first=first,
        why=why,
        rejected=rejected,
        competitive_ratio=ladder.bound,
    )


def guarded(option: Option, situation: Situation) -> Option | Rejection:
    """The option, or the guard that forbids it.

    Guards: a share of the pool may be out of service, half of a job's nodes must not change at once, and an
    action has to pay off before the job ends.
    """
    site, n = situation.site, len(option.nodes)
    if option.weight == "heavy" and situation.mode != "fail_stop":
        spare = site.nodes_to_spare
        if spare is not None and n > spare:
            reason = f"takes {n} nodes out of service; the pool may spare {spare}"
            return Rejection(action=option.action, reason=reason)
    if option.weight == "heavy" and n > 1 and n >= site.most_of_job * situation.job_nodes:
        reason = f"{n} of the job's {situation.job_nodes} nodes would change at once: look for a common cause"
        return Rejection(action=option.action, reason=reason)
    if (
        site.steps_left is not None
        and option.break_even_steps is not None
        and option.break_even_steps > site.steps_left
    ):
        reason = f"pays off after {option.break_even_steps:,} steps; the job has {site.steps_left:,} left"
        return Rejection(action=option.action, reason=reason)
    return option


def ladder_of(options: Sequence[Option], situation: Situation) -> Ladder:
    """The priced options as rungs of escalation."""
    rungs = []
    for each in options:
        if each.seconds_per_step_saved is not None and situation.lost > 0:
            left = 1.0 - each.chance * each.seconds_per_step_saved / situation.lost
            rungs.append(Rung(each.action, each.one_off_seconds, min(max(left, 0.0), 1.0)))
    return Ladder.of(rungs)


def _order(option: Option) -> tuple[bool, bool, float, str, list[int]]:
    """Light before heavy, what removes a cause before what works around it, then the expected saving."""
    around = option.action not in _REMOVES_A_CAUSE
    return option.weight == "heavy", around, -_expected(option), option.action, option.ranks


def _expected(option: Option) -> float:
    return option.chance * (option.seconds_per_step_saved or 0.0)


def _with_escalation(option: Option, options: Sequence[Option], situation: Situation) -> Option:
    """A heavy option with the steps after which the time lost equals its cost."""
    if option.weight != "heavy" or situation.mode != "fail_slow" or situation.over:
        return option
    lighter = max((_expected(each) for each in options if each.weight == "light"), default=0.0)
    steps = escalate_after(
        option.one_off_seconds,
        situation.lost * situation.steps_lost,
        max(situation.lost - lighter, 0.0),
    )
    return option.model_copy(update={"escalate_after_steps": steps})


def _first(options: Sequence[Option], situation: Situation) -> tuple[str, str]:
    """The action to take now, and why."""
    if situation.mode == "healthy":
        return "none", "the job is healthy" if situation.decided else "nothing certain is wrong yet"
    if not options:
        return "none", "no action applies; see the reasons"
    if situation.mode == "fail_stop":
        return options[0].action, "the job makes no progress, so every second of waiting is lost"
    if situation.over:
        return "none", "the slow steps ended before the window did; act if they return"
    heavy_due = [each for each in options if each.weight == "heavy" and each.escalate_after_steps == 0]
    if heavy_due:
        due = max(heavy_due, key=_expected)
        return due.action, f"the time lost already exceeds its cost of {due.one_off_seconds:,.0f} s"
    light = [each for each in options if each.weight == "light"]
    if light:
        return light[0].action, "it costs no restart" + _then(options)
    return "none", "waiting is cheaper than a restart so far" + _then(options)


def _then(options: Sequence[Option]) -> str:
    """The escalation as the end of a sentence."""
    heavy = [each for each in options if each.weight == "heavy" and each.escalate_after_steps is not None]
    if not heavy:
        return ""
    best = max(heavy, key=_expected)
    return f"; take {best.action} if the slowness lasts {best.escalate_after_steps:,} more steps"
