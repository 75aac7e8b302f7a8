"""The gain of actions, from the windows before and after them, and the corrections of predicted gains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from rca.recovery.outcomes import (
    MAX_WINDOWS,
    MIN_AFTER,
    Correction,
    GainEstimate,
    Outcome,
    correction,
    judged,
    observed_gain,
)
from rca_api.actions.tables import TakenActionRow
from rca_api.diagnoses.tables import DiagnosisRow
from rca_api.incidents.tables import IncidentRow, ObservationRow

#: Newest actions of a job that are judged again when a window arrives.
_FOLLOWED = 8
#: Windows read on either side of an action; some may overlap.
_READ = 4 * MAX_WINDOWS


class Seen(NamedTuple):
    """A confident window: bounds in Unix seconds, failure mode, seconds lost per step if they are known."""

    start: float
    end: float
    mode: str
    lost: float | None


def observe_actions(session: Session, diagnosis: DiagnosisRow) -> None:
    """Judge the newest actions of a job again; called for every finished diagnosis, after the incidents."""
    judge_actions(session, diagnosis.job_id)


def judge_actions(session: Session, job_id: str) -> None:
    """Judge the newest actions of a job with the windows that have arrived.

    The lock of the job must be held (`rca_api.incidents.repository.follow`).
    """
    newest = (
        select(TakenActionRow)
        .join(IncidentRow, IncidentRow.id == TakenActionRow.incident_id)
        .where(IncidentRow.job_id == job_id)
        .order_by(TakenActionRow.taken_at.desc(), TakenActionRow.id.desc())
    )
    rows = list(session.scalars(newest.limit(_FOLLOWED + 1)))
    for place, row in enumerate(rows[:_FOLLOWED]):
        following = rows[place - 1] if place else None
        earlier = rows[place + 1] if place + 1 < len(rows) else None
        _judge(session, job_id, row, _time(earlier), _time(following))


def _judge(
    session: Session, job_id: str, row: TakenActionRow, earlier: float | None, following: float | None
) -> None:
    """Judge one action, with the windows between the action before it and the action after it."""
    at = row.taken_at.timestamp()
    before = _before(session, row.incident_id, at, earlier)
    if before:
        # A stop has no seconds per step, so it is not compared with slow windows.
        stopped = before[0].mode == "fail_stop"
        before = [each for each in before if (each.mode == "fail_stop") == stopped]
    after = _after(session, job_id, at, following)
    row.windows_before, row.windows_after = len(before), len(after)
    row.outcome, gain = _outcome(before, after, row.predicted, superseded=following is not None)
    row.observed = None if gain is None else gain.seconds
    row.observed_low, row.observed_high = (None, None) if gain is None else gain.interval
    row.lost_before, row.lost_after = (None, None) if gain is None else (gain.before, gain.after)
    session.flush()


def _outcome(
    before: list[Seen], after: list[Seen], predicted: float | None, *, superseded: bool
) -> tuple[Outcome, GainEstimate | None]:
    if len(after) < MIN_AFTER:
        return "unclear" if superseded else "pending", None
    stops = sum(each.mode == "fail_stop" for each in after)
    if not before:
        return "unclear", None
    if before[0].mode == "fail_stop":
        return "helped" if not stops else "did_not_help" if stops == len(after) else "unclear", None
    if stops:
        return "unclear", None
    gain = observed_gain(_known(before), _known(after))
    return ("unclear", None) if gain is None else (judged(gain, predicted), gain)


def _known(windows: Iterable[Seen]) -> list[float]:
    return [each.lost for each in windows if each.lost is not None]


def _before(session: Session, incident_id: str, at: float, earlier: float | None) -> list[Seen]:
    """The last windows of an incident that end before an action, newest first."""
    statement = _windows().where(ObservationRow.incident_id == incident_id, ObservationRow.window_end <= at)
    if earlier is not None:
        statement = statement.where(ObservationRow.window_start >= earlier)
    newest = statement.order_by(ObservationRow.window_end.desc(), ObservationRow.window_start.desc())
    kept: list[Seen] = []
    for each in _read(session, newest):
        if not kept or each.end <= kept[-1].start:
            kept.append(each)
    return kept[:MAX_WINDOWS]


def _after(session: Session, job_id: str, at: float, following: float | None) -> list[Seen]:
    """The first windows of a job that begin after an action and end before the next one, oldest first."""
    statement = _windows().where(ObservationRow.job_id == job_id, ObservationRow.window_start >= at)
    if following is not None:
        statement = statement.where(ObservationRow.window_end <= following)
    kept: list[Seen] = []
    for each in _read(session, statement.order_by(ObservationRow.window_end, ObservationRow.window_start)):
        if not kept or each.start >= kept[-1].end:
            kept.append(each)
    return kept[:MAX_WINDOWS]


def _windows() -> Select[float, float, str, float | None]:
    """Select the windows with a confident diagnosis."""
    columns = (
        ObservationRow.window_start,
        ObservationRow.window_end,
        ObservationRow.failure_mode,
        DiagnosisRow.seconds_per_step,
    )
    joined = select(*columns).join(DiagnosisRow, DiagnosisRow.id == ObservationRow.diagnosis_id)
    return joined.where(ObservationRow.verdict.in_(("healthy", "sick")), ~ObservationRow.ahead)


def _read(session: Session, statement: Select[float, float, str, float | None]) -> Iterable[Seen]:
    return (Seen(*row) for row in session.execute(statement.limit(_READ)))


def _time(row: TakenActionRow | None) -> float | None:
    return None if row is None else row.taken_at.timestamp()


#: Newest actions with an observed gain that count.
_NEWEST = 5000


def corrections(session: Session) -> dict[str, Correction]:
    """How the gain of each action compares with its predictions, for actions with an observed gain.

    Predictions count as they were without the correction that they include.
    """
    statement = select(
        TakenActionRow.action,
        TakenActionRow.incident_id,
        TakenActionRow.observed,
        TakenActionRow.predicted,
        TakenActionRow.correction,
    ).where(
        TakenActionRow.observed.is_not(None),
        TakenActionRow.predicted.is_not(None),
        TakenActionRow.correction > 0,
    )
    gains: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for action, incident, observed, predicted, included in session.execute(
        statement.order_by(TakenActionRow.taken_at.desc()).limit(_NEWEST)
    ):
        if observed is not None and predicted is not None:
            gains[action][incident].append((observed, predicted / included))
    found = {action: correction(held) for action, held in sorted(gains.items())}
    return {action: each for action, each in found.items() if each.n}


def factors(found: Mapping[str, Correction]) -> dict[str, float]:
    """The factors of corrections, as a site has them."""
    return {action: each.factor for action, each in found.items()}
