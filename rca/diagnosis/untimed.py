"""Answers about windows without step times: who, how and what to do, without a cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import uuid4

from rca.diagnosis.advice import removals
from rca.diagnosis.causes import catalogued
from rca.diagnosis.result import (
    PRICE,
    AbstentionReason,
    Cause,
    Diagnosis,
    Evidence,
    Finding,
    ModelVersion,
    Quality,
    Scope,
    Shared,
    Slowdown,
    Straggler,
)
from rca.window.causes import FailureMode, StragglerType
from rca.window.window import Window

#: Explains why a cause of such a window has no price.
UNKNOWN_COST = Evidence(
    signal=PRICE, value=None, reference=None, unit="s", note="no step was timed, so its cost is unknown"
)
_NO_COST = Slowdown(
    ratio=None, seconds_per_step=None, versus_own_past=None, interval=None, gpu_hours_lost=None
)


def untimed_straggler(
    ranks: list[int],
    nodes: list[str],
    scope: Scope,
    probability: float,
    since: datetime | None,
    *,
    until: datetime | None = None,
    straggler_type: StragglerType | None = None,
    shared: Shared | None = None,
) -> Straggler:
    """A straggler whose steps are unknown."""
    return Straggler(
        ranks=ranks,
        nodes=nodes,
        scope=scope,
        straggler_type=straggler_type,
        pattern=None,
        probability=probability,
        first_step=None,
        last_step=None,
        since=since,
        until=until,
        shared=shared,
    )


def untimed_quality(
    window: Window,
    notes: Sequence[str],
    *,
    rows_used: int = 0,
    samples_used: int = 0,
    events_used: int = 0,
    unknown_metrics: Sequence[str] = (),
) -> Quality:
    """Used and unused data of a window without steps; the notes follow those of the window."""
    return Quality(
        rows_used=rows_used,
        rows_unused=0,
        steps_used=0,
        warmup_steps=0,
        metric_samples_used=samples_used,
        metric_samples_unused=window.metrics.num_rows - samples_used,
        events_used=events_used,
        events_unused=window.events.num_rows - events_used,
        unknown_metrics=sorted(unknown_metrics),
        notes=[*window.notes, *notes],
    )


def untimed_diagnosis(
    window: Window,
    model: ModelVersion,
    *,
    mode: FailureMode,
    probability: Mapping[FailureMode, float],
    modes_left: Sequence[FailureMode],
    stragglers: list[Straggler],
    causes: list[Cause],
    findings: list[Finding],
    reason: AbstentionReason | None,
    next_check: str,
    missing: list[str],
    quality: Quality,
    left_out: int = 0,
    act: bool = True,
) -> Diagnosis:
    """A diagnosis without seconds per step; at most the first cause has a remedy.

    Parameters
    ----------
    model : ModelVersion
        Version of the bundle; it has no part in the answer.
    modes_left : sequence of str
        Failure modes that are not ruled out.
    reason : AbstentionReason or None
        None for a decided answer.
    missing : list of str
        Signals that the window lacks.
    left_out : int
        Stragglers beyond those listed.
    act : bool
        Whether the first cause is likely enough for a remedy.
    """
    return Diagnosis(
        diagnosis_id=uuid4().hex,
        window_id=window.job.window_id,
        job_id=window.job.job_id,
        created_at=datetime.now(UTC),
        model=model,
        failure_mode=mode,
        failure_mode_probability=dict(probability),
        slowdown=_NO_COST,
        stragglers=stragglers,
        causes=causes,
        findings=findings,
        unexplained_seconds_per_step=None,
        abstained=reason is not None,
        next_check=next_check,
        actions=[],
        recovery=removals(catalogued(causes)[:1] if act else [], {}),
        missing_signals=missing,
        quality=quality,
        failure_mode_set=list(modes_left),
        abstention_reason=reason,
        left_out={"stragglers": left_out} if left_out else {},
    )
