"""Two answers about one job made one: what a part of the window told, added to what the whole did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rca.diagnosis.result import Action, Cause, Diagnosis, Interval, Slowdown, Straggler

#: Reasons not to name a cause that end when one is certain.
_SETTLED = frozenset({"nobody_stands_out", "cause_not_certain"})


def joined(
    whole: Diagnosis, part: Diagnosis, causes: Sequence[Cause], share: float, measured: float
) -> Diagnosis:
    """The diagnosis of a whole window with causes of one of its parts.

    The same cause on ranks that overlap gives way to the part's, which is the surer one; what it costs is
    then the larger of both, because a part is short.

    Parameters
    ----------
    whole, part : Diagnosis
    causes : sequence of Cause
        Those of the part that are to be added.
    share : float
        The part's share of the window's steps, by which its seconds count.
    measured : float
        The window's mean step, seconds.
    """
    old = [cause for cause in whole.causes if not _overlapping(cause, causes)]
    added = [_priced(cause, share, _overlapping(cause, whole.causes)) for cause in causes]
    slowdown = _slowdown(whole, old, added, measured)
    found = sorted(
        (_of_slowdown(cause, slowdown.seconds_per_step) for cause in (*old, *added)),
        key=lambda cause: (-cause.seconds_per_step * cause.probability, cause.cause, cause.ranks),
    )
    return whole.model_copy(
        update={
            "slowdown": slowdown,
            "stragglers": _stragglers(whole, part, old, added),
            "causes": found,
            "unexplained_seconds_per_step": slowdown.seconds_per_step
            - sum(cause.seconds_per_step for cause in found),
            "actions": [*whole.actions, *(_action_over_all_steps(action, share) for action in part.actions)],
            **_verdict(whole, part, first=bool(_overlapping(found[0], added))),
        }
    )


def _overlapping(cause: Cause, others: Sequence[Cause]) -> list[Cause]:
    return [one for one in others if one.cause == cause.cause and set(one.ranks) & set(cause.ranks)]


def _priced(cause: Cause, share: float, same: Sequence[Cause]) -> Cause:
    """A part's cause with its mean over all steps, or that of what gave way to it."""
    own = (share * cause.seconds_per_step, _scaled(cause.interval, share))
    seconds, interval = max([own, *((one.seconds_per_step, one.interval) for one in same)])
    return cause.model_copy(update={"seconds_per_step": seconds, "interval": interval})


def _action_over_all_steps(action: Action, share: float) -> Action:
    saved, interval = action.expected_seconds_per_step_saved, action.interval
    return action.model_copy(
        update={
            "expected_seconds_per_step_saved": None if saved is None else share * saved,
            "interval": None if interval is None else _scaled(interval, share),
        }
    )


def _scaled(interval: Interval, share: float) -> Interval:
    return share * interval[0], share * interval[1]


def _of_slowdown(cause: Cause, total: float) -> Cause:
    share = min(max(cause.seconds_per_step / max(total, 1e-12), 0.0), 1.0)
    return cause.model_copy(update={"share": share})


def _slowdown(whole: Diagnosis, old: Sequence[Cause], added: Sequence[Cause], measured: float) -> Slowdown:
    """The slowdown with what the added causes cost beyond its unexplained rest.

    That part had been taken for the job's usual pace.
    """
    told = whole.slowdown
    rest = told.seconds_per_step - sum(cause.seconds_per_step for cause in old)
    unseen = max(0.0, sum(cause.seconds_per_step for cause in added) - max(0.0, rest))
    seconds = told.seconds_per_step + unseen
    grown = seconds / told.seconds_per_step if told.seconds_per_step > 0 else 1.0
    return told.model_copy(
        update={
            "ratio": measured / (measured - seconds) if 0 < seconds < measured else told.ratio,
            "seconds_per_step": seconds,
            "interval": (told.interval[0] + unseen, told.interval[1] + unseen),
            "gpu_hours_lost": told.gpu_hours_lost * grown,
        }
    )


def _stragglers(
    whole: Diagnosis, part: Diagnosis, old: Sequence[Cause], added: Sequence[Cause]
) -> list[Straggler]:
    """The whole window's stragglers but those whose causes gave way, and the part's of the added causes."""
    blamed = [cause.ranks for cause in old]
    excused = [cause.ranks for cause in whole.causes if cause.ranks not in blamed]
    kept = [one for one in whole.stragglers if one.ranks not in excused]
    known, new = [one.ranks for one in kept], [cause.ranks for cause in added]
    return [*kept, *(one for one in part.stragglers if one.ranks in new and one.ranks not in known)]


def _verdict(whole: Diagnosis, part: Diagnosis, *, first: bool) -> dict[str, Any]:
    """Whether the whole window's doubt remains; `first` if what it doubted is no longer named first."""
    reason = whole.abstention_reason
    if reason is None or reason.code not in _SETTLED or not first:
        return {}
    return {"abstained": False, "abstention_reason": None, "next_check": part.next_check}
