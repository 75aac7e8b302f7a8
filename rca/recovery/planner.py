"""The plan: every action as an option or with the reason against it, guarded and in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pydantic import BaseModel, ConfigDict

from rca.recovery.all_reduce import StragglerAwareAllReduce
from rca.recovery.capabilities import by_owner, impossible, needs_code, net_seconds, with_restart
from rca.recovery.checkpoints import CheckpointInterval
from rca.recovery.escalation import Ladder, Rung, escalate_after
from rca.recovery.guards import priced, refused
from rca.recovery.isolation import IsolateSuspects
from rca.recovery.network import DegradedLinkCollectives, Reroute
from rca.recovery.option import Option, RecoveryAction, Rejection
from rca.recovery.remedies import REBALANCE_STAGES, REMEDIES
from rca.recovery.situation import Interval, Situation
from rca.recovery.synchronisation import AdjustLearningRate, BackupWorkers, GroupedSynchronisation
from rca.recovery.work_shares import AdjustBatchSizes
from rca.window.causes import STOP_CAUSES

#: Actions that need the window's step times for their price.
REPLAYED: tuple[RecoveryAction, ...] = (
    REBALANCE_STAGES,
    AdjustBatchSizes(),
    BackupWorkers(),
    GroupedSynchronisation(),
    StragglerAwareAllReduce(),
    DegradedLinkCollectives(),
    CheckpointInterval(),
)
#: All actions, in the order of their mention where gains are equal.
ACTIONS: tuple[RecoveryAction, ...] = (
    *REMEDIES,
    *(each for each in REPLAYED if each not in REMEDIES),
    AdjustLearningRate(),
    Reroute(),
    IsolateSuspects(),
)

_STOPS = frozenset(STOP_CAUSES)
_ASKS = frozenset(remedy.name for remedy in REMEDIES if remedy.asks)
_REMOVES_A_CAUSE = frozenset(remedy.name for remedy in REMEDIES)


class Plan(BaseModel):
    """What to do about a diagnosis.

    Attributes
    ----------
    mode : {"healthy", "fail_slow", "fail_stop"}
    seconds_per_step_lost : float or None
        Without any action; None where the cost is unknown.
    options : list of Option
        Those first whose gain surely exceeds their cost: of its lower end, until the job ends or for as long
        as the slowness has lasted. Among these, actions of the cause's owner come first, then what removes a
        cause, then the larger sure gain.
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
    seconds_per_step_lost: float | None
    interval: Interval | None
    options: list[Option]
    first: str
    why: str
    rejected: list[Rejection]
    competitive_ratio: float


def plan(
    situation: Situation, actions: Sequence[RecoveryAction] = ACTIONS, *, replayed: Sequence[Option] = ()
) -> Plan:
    """Judge every action in a situation.

    Parameters
    ----------
    actions : sequence of Action
        By default all.
    replayed : sequence of Option
        Of an earlier plan, for actions that cannot be replayed now; not corrected.
    """
    options: list[Option] = []
    rejected: list[Rejection] = []
    found: list[Option] = []
    for action in actions:
        known: list[Option | Rejection] = [each for each in replayed if each.action == action.name]
        for each in known or action.options(situation):
            refusal = each if isinstance(each, Rejection) else impossible(each, situation.site)
            if isinstance(each, Option) and refusal is None:
                found.append(priced(with_restart(each, situation.site), situation))
            elif refusal is not None:
                rejected.append(refusal)
    for each in sorted(found, key=partial(_order, situation)):
        refusal = refused(each, situation, options)
        if refusal is None:
            options.append(each)
        else:
            rejected.append(refusal)
    # What needs other code is for the next start of the job, and delays no action of this one.
    ready = [each for each in options if not needs_code(each.action, situation.site)]
    options = [_with_escalation(each, ready, situation) if each in ready else each for each in options]
    ready = [each for each in options if not needs_code(each.action, situation.site)]
    first, why = _first(ready, situation)
    if options and not ready and situation.mode == "fail_slow":
        why = "every action needs other code, so take it at the next start of the job"
    ladder = ladder_of(ready, situation)
    return Plan(
        mode=situation.mode,
        seconds_per_step_lost=situation.lost if situation.lost_is_known else None,
        interval=situation.lost_interval if situation.lost_is_known else None,
        options=options,
        first=first,
        why=why,
        rejected=rejected,
        competitive_ratio=ladder.bound,
    )


def ladder_of(options: Sequence[Option], situation: Situation) -> Ladder:
    """The priced options as rungs of escalation."""
    rungs = []
    for each in options:
        if each.seconds_per_step_saved is not None and situation.lost > 0:
            left = 1.0 - each.chance * each.seconds_per_step_saved / situation.lost
            rungs.append(Rung(each.action, each.one_off_seconds, min(max(left, 0.0), 1.0)))
    return Ladder.of(rungs)


def _order(situation: Situation, option: Option) -> tuple[bool | float | str | list[int], ...]:
    """What surely pays before what may not, actions of the cause's owner, then what is surely gained.

    Of equal ones what removes a cause comes first, then the likeliest: the gain of ending a stop is unknown.
    """
    around, net = option.action not in _REMOVES_A_CAUSE, net_seconds(option, situation)
    is_later = net < 0
    gains = -net, -_expected(option), -option.chance
    return is_later, not by_owner(option), around, *gains, option.action, option.ranks


def _expected(option: Option) -> float:
    return option.chance * (option.seconds_per_step_saved or 0.0)


def _with_escalation(option: Option, options: Sequence[Option], situation: Situation) -> Option:
    """A heavy option with the steps after which the loss that it ends equals its cost."""
    if option.weight != "heavy" or situation.mode != "fail_slow" or situation.over:
        return option
    # A light action ends part of the same loss, once it is taken; asking others ends none yet.
    light = (each for each in options if each.weight == "light" and each.action not in _ASKS)
    lighter = max((_expected(each) for each in light), default=0.0)
    share = min(_expected(option) / situation.lost, 1.0) if situation.lost > 0 else 0.0
    before = situation.site.seconds_lost + situation.lost * situation.steps_lost
    ended = min(_expected(option), max(situation.lost - lighter, 0.0))
    steps = escalate_after(option.one_off_seconds, share * before, ended)
    return option.model_copy(update={"escalate_after_steps": steps})


def _first(options: Sequence[Option], situation: Situation) -> tuple[str, str]:
    """The action to take now, and why."""
    if situation.mode == "healthy":
        return "none", "the job is not slow" if situation.decided else "nothing certain is wrong yet"
    if not options:
        return "none", "no action applies to the running job; see the reasons"
    if situation.mode == "fail_stop":
        ending = [each for each in options if not _STOPS.isdisjoint(each.causes)]
        if ending:
            return ending[0].action, "the job makes no progress, so every second of waiting is lost"
        return "none", "no action applies to the stop; the others are for the slowness before it"
    if situation.over:
        return "none", "the slow steps ended before the window did; act if they return"
    heavy_due = [each for each in options if each.weight == "heavy" and each.escalate_after_steps == 0]
    if heavy_due:
        due = max(heavy_due, key=_expected)
        return due.action, f"the loss that it ends already exceeds its cost of {due.one_off_seconds:,.0f} s"
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
