"""Two answers about one job made one: what a part of the window told, added to what the whole did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rca.diagnosis.advice import first_action
from rca.diagnosis.causes import by_expected_cost, catalogued, named_first, share_of
from rca.diagnosis.result import Action, Cause, Diagnosis, Interval, Slowdown, Straggler
from rca.telemetry.causes import UNKNOWN

#: Reasons not to name a cause that end when one is certain.
_SETTLED = frozenset({"nobody_stands_out", "cause_not_certain"})
#: What a verdict consists of, but for its seconds.
_VERDICT = (
    "failure_mode",
    "failure_mode_probability",
    "failure_mode_set",
    "failure_mode_evidence",
    "stragglers",
    "abstained",
    "abstention_reason",
    "next_check",
)
#: What is lost is less than this share of a step, however much the parts say.
MOST_LOST = 0.95


def merge_diagnoses(
    whole: Diagnosis,
    part: Diagnosis,
    causes: Sequence[Cause],
    *,
    share: float,
    measured: float,
    rank_steps: float,
) -> Diagnosis:
    """The diagnosis of a whole window with causes of one of its parts.

    The same cause on ranks that overlap gives way to the part's, which is the surer one; what it costs is
    then the larger of both, because a part is short, and it acted in the steps of both. So does that nothing
    explains some ranks where the part explains just these, and is surer.

    Parameters
    ----------
    whole, part : Diagnosis
    causes : sequence of Cause
        Those of the part that are to be added: surer than the whole's on the same ranks.
    share : float
        The part's share of the window's steps, by which its seconds count.
    measured : float
        The window's mean step, seconds.
    rank_steps : float
        Its steps times its ranks.
    """
    gone = [each for cause in causes for each in _given_way(cause, whole.causes)]
    old = [cause for cause in whole.causes if cause not in gone]
    added = _priced(causes, whole.causes, share)
    slowdown = _slowdown(whole, old, added, measured, rank_steps)
    total = slowdown.seconds_per_step
    found = by_expected_cost(
        cause.model_copy(update={"share": share_of(cause.seconds_per_step, total)})
        for cause in _within(total, [*old, *added])
    )
    verdict = _verdict(whole, part, new_first=bool(same_on_some(catalogued(found)[0], added)))
    return whole.model_copy(
        update={
            "slowdown": slowdown,
            "stragglers": _stragglers(whole, part, old, added),
            "causes": found if verdict.get("abstained", whole.abstained) else named_first(found),
            "unexplained_seconds_per_step": total - sum(cause.seconds_per_step for cause in found),
            "actions": _actions(whole, part, old, added, share),
            **verdict,
        }
    )


def adopt_segment_verdict(
    whole: Diagnosis, part: Diagnosis, *, share: float, measured: float, rank_steps: float
) -> Diagnosis:
    """A part's verdict for the whole window, its seconds as means over all steps.

    Parameters
    ----------
    whole, part : Diagnosis
    share : float
        Of the window's steps, in which what the part says is so.
    measured, rank_steps : float
        As in `merge_diagnoses`.
    """
    lost = part.slowdown.seconds_per_step
    scale = min(share, MOST_LOST * measured / lost) if lost > 0 else share
    seconds = {
        "ratio": measured / (measured - scale * lost),
        "seconds_per_step": scale * lost,
        "interval": _scaled(part.slowdown.interval, scale),
        "gpu_hours_lost": scale * lost * rank_steps / 3600,
    }
    return whole.model_copy(
        update={
            **{name: getattr(part, name) for name in _VERDICT},
            "slowdown": part.slowdown.model_copy(update=seconds),
            "causes": [_over_all(cause, scale) for cause in part.causes],
            "unexplained_seconds_per_step": scale * part.unexplained_seconds_per_step,
            "actions": [_over_all_steps(action, scale) for action in part.actions],
        }
    )


def same_on_some(cause: Cause, others: Sequence[Cause]) -> list[Cause]:
    """Those of the others that are the same cause on ranks that overlap."""
    return [one for one in others if one.cause == cause.cause and set(one.ranks) & set(cause.ranks)]


def _given_way(new: Cause, known: Sequence[Cause]) -> list[Cause]:
    """What a new cause replaces: itself where ranks overlap, and a less likely unknown of just its ranks.

    With the unknown go the causes of these ranks that were even less likely.
    """
    here = [one for one in known if set(one.ranks) == set(new.ranks) and one.probability < new.probability]
    unknown = max((one.probability for one in here if one.cause == UNKNOWN), default=0.0)
    same = same_on_some(new, known)
    return [*same, *(one for one in here if one.probability <= unknown and one not in same)]


def doubts_only_causes(diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis abstains from nothing, or from naming a cause only."""
    reason = diagnosis.abstention_reason
    return reason is None or reason.code in _SETTLED


def lasting(found: Sequence[Straggler], others: Sequence[Sequence[Straggler]]) -> list[Straggler]:
    """A part's stragglers over the steps of those of the same ranks in others; the first give the pattern."""
    return [_as_long_as_both(one, [same for part in others for same in part]) for one in found]


def _priced(causes: Sequence[Cause], whole: Sequence[Cause], share: float) -> list[Cause]:
    """A part's causes with their means over all steps, or those of what gives way to them."""
    left = list(whole)
    found = []
    for cause in causes:
        same = _given_way(cause, left)
        left = [one for one in left if one not in same]
        dearest = max([_over_all(cause, share), *same], key=lambda one: (one.seconds_per_step, one.interval))
        cost = {"seconds_per_step": dearest.seconds_per_step, "interval": dearest.interval}
        found.append(cause.model_copy(update=cost))
    return found


def _within(total: float, causes: Sequence[Cause]) -> list[Cause]:
    """The causes with no more seconds together than were lost, which is always less than the step."""
    seconds = sum(cause.seconds_per_step for cause in causes)
    if seconds <= total:
        return list(causes)
    scaled = (cause.seconds_per_step * total / seconds for cause in causes)
    return [
        cause.model_copy(
            update={"seconds_per_step": each, "interval": (min(cause.interval[0], each), cause.interval[1])}
        )
        for cause, each in zip(causes, scaled, strict=True)
    ]


def _over_all(cause: Cause, share: float) -> Cause:
    """A part's cause with what it costs on average over all steps."""
    seconds, interval = share * cause.seconds_per_step, _scaled(cause.interval, share)
    return cause.model_copy(update={"seconds_per_step": seconds, "interval": interval})


def _scaled(interval: Interval, share: float) -> Interval:
    return share * interval[0], share * interval[1]


def _slowdown(
    whole: Diagnosis, old: Sequence[Cause], added: Sequence[Cause], measured: float, rank_steps: float
) -> Slowdown:
    """The slowdown with what the added causes cost beyond its unexplained rest.

    That part had been taken for the job's usual pace.
    """
    told = whole.slowdown
    rest = told.seconds_per_step - sum(cause.seconds_per_step for cause in old)
    unseen = max(0.0, sum(cause.seconds_per_step for cause in added) - max(0.0, rest))
    seconds = max(told.seconds_per_step, min(told.seconds_per_step + unseen, MOST_LOST * measured))
    grown = seconds - told.seconds_per_step
    return told.model_copy(
        update={
            "ratio": measured / (measured - seconds) if 0 < grown < measured else told.ratio,
            "seconds_per_step": seconds,
            "interval": (told.interval[0] + grown, told.interval[1] + grown),
            "gpu_hours_lost": told.gpu_hours_lost + grown * rank_steps / 3600,
        }
    )


def _stragglers(
    whole: Diagnosis, part: Diagnosis, old: Sequence[Cause], added: Sequence[Cause]
) -> list[Straggler]:
    """The whole window's stragglers but those whose causes gave way, and the part's of the added causes."""
    blamed = [cause.ranks for cause in old]
    excused = [cause.ranks for cause in whole.causes if cause.ranks not in blamed]
    gone = [one for one in whole.stragglers if one.ranks in excused]
    kept = [one for one in whole.stragglers if one not in gone]
    known = {(tuple(one.ranks), one.straggler_type) for one in kept}
    named = [set(cause.ranks) for cause in added]
    new = [
        _as_long_as_both(_over_if_outlasted(one, kept), gone)
        for one in part.stragglers
        if any(set(one.ranks) <= ranks for ranks in named)
        and (tuple(one.ranks), one.straggler_type) not in known
    ]
    return [*kept, *new]


def _over_if_outlasted(found: Straggler, others: Sequence[Straggler]) -> Straggler:
    """A part's straggler, transient if others began to be slow when it was not any more."""
    later = [one.first_step for one in others if one.straggler_type and one.first_step is not None]
    over = found.last_step is not None and any(found.last_step < first for first in later)
    return found.model_copy(update={"pattern": "transient"}) if over else found


def _as_long_as_both(found: Straggler, gone: Sequence[Straggler]) -> Straggler:
    """A part's straggler over the steps of whom it takes the place of, too."""
    same = [one for one in gone if set(one.ranks) & set(found.ranks)]
    spans = [
        (one.first_step, one.last_step)
        for one in (found, *same)
        if one.first_step is not None and one.last_step is not None
    ]
    if not same or not spans:
        return found
    span = {"first_step": min(first for first, _ in spans), "last_step": max(last for _, last in spans)}
    return found.model_copy(update={**span, "pattern": same[0].pattern})


def _actions(
    whole: Diagnosis, part: Diagnosis, old: Sequence[Cause], added: Sequence[Cause], share: float
) -> list[Action]:
    """The whole's actions but those for what gave way only, and the part's for what was added."""
    wanted = {first_action(cause.cause) for cause in old}
    gone = {first_action(cause.cause) for cause in whole.causes} - wanted
    new = {first_action(cause.cause) for cause in added}
    kept = [action for action in whole.actions if action.action not in gone]
    return [*kept, *(_over_all_steps(action, share) for action in part.actions if action.action in new)]


def _over_all_steps(action: Action, share: float) -> Action:
    saved, interval = action.expected_seconds_per_step_saved, action.interval
    return action.model_copy(
        update={
            "expected_seconds_per_step_saved": None if saved is None else share * saved,
            "interval": None if interval is None else _scaled(interval, share),
        }
    )


def _verdict(whole: Diagnosis, part: Diagnosis, *, new_first: bool) -> dict[str, Any]:
    """What to look at next, and whether the whole window's doubt remains; a new first cause changes both."""
    if not new_first or not doubts_only_causes(whole):
        return {}
    return {"abstained": False, "abstention_reason": None, "next_check": part.next_check}
