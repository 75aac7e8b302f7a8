"""Merge the diagnosis of a part of a window into that of the whole window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rca.diagnosis.causes import by_expected_cost, catalogued, named_first, share_of
from rca.diagnosis.result import (
    Cause,
    Diagnosis,
    Finding,
    Interval,
    RecoveryFacts,
    Removal,
    Slowdown,
    Straggler,
)
from rca.window.causes import UNKNOWN

#: Reasons of abstention that a certain cause removes.
_SETTLED = frozenset({"nobody_stands_out", "cause_not_certain"})
#: Largest share of a step that may be lost, whatever the parts add up to.
MAX_LOST = 0.95


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

    The part's cause replaces the same cause on overlapping ranks, because it is more certain. Its cost is the
    larger of both: a part is short, and the cause acted in the steps of both. It also replaces a less likely
    `unknown` on exactly its ranks.

    Parameters
    ----------
    causes : sequence of Cause
        Causes of the part to add: more certain than the whole's on the same ranks.
    share : float
        The part's share of the window's steps, by which its seconds count.
    measured : float
        The window's mean step, seconds.
    rank_steps : float
        Its steps times its ranks.
    """
    gone = [each for cause in causes for each in _replaced(cause, whole.causes)]
    old = [cause for cause in whole.causes if cause not in gone]
    added = _priced(causes, whole.causes, share)
    slowdown = _slowdown(whole, old, added, measured, rank_steps)
    total = slowdown.seconds_per_step or 0.0
    found = by_expected_cost(_with_share(cause, total) for cause in _within(total, [*old, *added]))
    verdict = _verdict(whole, part, new_first=bool(same_on_some(catalogued(found)[0], added)))
    return whole.model_copy(
        update={
            "slowdown": slowdown,
            "stragglers": _stragglers(whole, part, old, added),
            "causes": found
            if verdict.get("abstained", whole.abstained)
            else named_first(found, [*added, *_named(whole)]),
            "findings": joined_findings(whole.findings, part.findings),
            "unexplained_seconds_per_step": total - _seconds_of(found),
            "recovery": _recovery(whole, part, old, added, share),
            **verdict,
        }
    )


def joined_findings(whole: Sequence[Finding], part: Sequence[Finding]) -> list[Finding]:
    """The findings of a window with those that only a part of it shows, the loudest first."""
    known = {(each.signal, tuple(each.ranks)) for each in whole}
    new = [each for each in part if (each.signal, tuple(each.ranks)) not in known]
    return sorted([*whole, *new], key=lambda each: -each.strength)


def _named(diagnosis: Diagnosis) -> list[Cause]:
    """The cause that an answer names, if any."""
    nothing = diagnosis.abstained or diagnosis.cause_is_unknown
    return [] if nothing else diagnosis.causes[:1]


def same_on_some(cause: Cause, others: Sequence[Cause]) -> list[Cause]:
    """Those of the others that are the same cause on ranks that overlap."""
    return [one for one in others if one.cause == cause.cause and set(one.ranks) & set(cause.ranks)]


def _replaced(new: Cause, known: Sequence[Cause]) -> list[Cause]:
    """Causes that a new one replaces: itself on overlapping ranks, and a less likely unknown on its ranks.

    Causes of these ranks that are less likely than the unknown are replaced as well.
    """
    here = [one for one in known if set(one.ranks) == set(new.ranks) and one.probability < new.probability]
    unknown = max((one.probability for one in here if one.cause == UNKNOWN), default=0.0)
    same = same_on_some(new, known)
    return [*same, *(one for one in here if one.probability <= unknown and one not in same)]


def doubts_only_causes(diagnosis: Diagnosis) -> bool:
    """Whether a diagnosis does not abstain, or only from naming a cause."""
    reason = diagnosis.abstention_reason
    return reason is None or reason.code in _SETTLED


def _priced(causes: Sequence[Cause], whole: Sequence[Cause], share: float) -> list[Cause]:
    """A part's causes with their cost over all steps, or the cost of the causes they replace if larger."""
    left = list(whole)
    found = []
    for cause in causes:
        same = _replaced(cause, left)
        left = [one for one in left if one not in same]
        dearest = max([_over_all(cause, share), *same], key=_cost)
        cost = {"seconds_per_step": dearest.seconds_per_step, "interval": dearest.interval}
        found.append(cause.model_copy(update=cost))
    return found


def _within(total: float, causes: Sequence[Cause]) -> list[Cause]:
    """The causes, scaled so that their seconds do not add up to more than the slowdown."""
    seconds = _seconds_of(causes)
    if seconds <= total:
        return list(causes)
    return [_scaled_down(cause, total / seconds) for cause in causes]


def _scaled_down(cause: Cause, factor: float) -> Cause:
    """The cause with less seconds; the upper end of its interval stays."""
    if cause.seconds_per_step is None or cause.interval is None:
        return cause
    seconds = cause.seconds_per_step * factor
    interval = min(cause.interval[0], seconds), cause.interval[1]
    return cause.model_copy(update={"seconds_per_step": seconds, "interval": interval})


def _with_share(cause: Cause, total: float) -> Cause:
    known = cause.seconds_per_step
    return cause.model_copy(update={"share": None if known is None else share_of(known, total)})


def _seconds_of(causes: Sequence[Cause]) -> float:
    """The known seconds per step of all causes."""
    return sum(cause.seconds_per_step or 0.0 for cause in causes)


def _cost(cause: Cause) -> tuple[float, Interval]:
    """A cost to compare; an unknown one is the least."""
    return cause.seconds_per_step or 0.0, cause.interval or (0.0, 0.0)


def _over_all(cause: Cause, share: float) -> Cause:
    """A part's cause with its mean cost over all steps."""
    if cause.seconds_per_step is None:
        return cause
    seconds, interval = share * cause.seconds_per_step, _scaled(cause.interval, share)
    return cause.model_copy(update={"seconds_per_step": seconds, "interval": interval})


def _scaled(interval: Interval | None, share: float) -> Interval | None:
    return None if interval is None else (share * interval[0], share * interval[1])


def _slowdown(
    whole: Diagnosis, old: Sequence[Cause], added: Sequence[Cause], measured: float, rank_steps: float
) -> Slowdown:
    """The slowdown, increased by the cost of the added causes beyond its unexplained rest.

    The whole window's diagnosis had counted that cost as usual step time.
    """
    before = whole.slowdown
    known, (low, high) = before.seconds_per_step or 0.0, before.interval or (0.0, 0.0)
    rest = known - _seconds_of(old)
    unseen = max(0.0, _seconds_of(added) - max(0.0, rest))
    seconds = max(known, min(known + unseen, MAX_LOST * measured))
    grown = seconds - known
    return before.model_copy(
        update={
            "ratio": measured / (measured - seconds) if 0 < grown < measured else before.ratio,
            "seconds_per_step": seconds,
            "interval": (low + grown, high + grown),
            "gpu_hours_lost": (before.gpu_hours_lost or 0.0) + grown * rank_steps / 3600,
        }
    )


def _stragglers(
    whole: Diagnosis, part: Diagnosis, old: Sequence[Cause], added: Sequence[Cause]
) -> list[Straggler]:
    """The whole window's stragglers without those of replaced causes, and the part's of the added causes."""
    remaining = [cause.ranks for cause in old]
    replaced = [cause.ranks for cause in whole.causes if cause.ranks not in remaining]
    gone = [one for one in whole.stragglers if one.ranks in replaced]
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
    """A part's straggler, transient if another straggler began after it ended."""
    later = [one.first_step for one in others if one.straggler_type and one.first_step is not None]
    over = found.last_step is not None and any(found.last_step < first for first in later)
    return found.model_copy(update={"pattern": "transient"}) if over else found


def _as_long_as_both(found: Straggler, gone: Sequence[Straggler]) -> Straggler:
    """A part's straggler, extended to the steps of those that it replaces."""
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


def _recovery(
    whole: Diagnosis, part: Diagnosis, old: Sequence[Cause], added: Sequence[Cause], share: float
) -> RecoveryFacts | None:
    """The whole's facts with the removals of its remaining causes, and those of the part's added ones."""
    if part.recovery is None:
        return whole.recovery
    facts = whole.recovery or RecoveryFacts(removals=[])
    kept = [each for each in facts.removals if _removes_one_of(each, old)]
    new = [_over_all_steps(each, share) for each in part.recovery.removals if _removes_one_of(each, added)]
    return facts.model_copy(update={"removals": [*kept, *new]})


def _removes_one_of(removal: Removal, causes: Sequence[Cause]) -> bool:
    return any((cause.cause, cause.ranks) == (removal.cause, removal.ranks) for cause in causes)


def _over_all_steps(removal: Removal, share: float) -> Removal:
    saved, interval = removal.seconds_per_step_saved, removal.interval
    return removal.model_copy(
        update={
            "seconds_per_step_saved": None if saved is None else share * saved,
            "interval": _scaled(interval, share),
        }
    )


def _verdict(whole: Diagnosis, part: Diagnosis, *, new_first: bool) -> dict[str, Any]:
    """Abstention and next check of the merged diagnosis; a new first cause changes both."""
    if not new_first or not doubts_only_causes(whole):
        return {}
    return {"abstained": False, "abstention_reason": None, "next_check": part.next_check}
