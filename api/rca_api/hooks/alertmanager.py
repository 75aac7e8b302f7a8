"""From a group of alerts to diagnoses: which jobs, their windows from a source, the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import orjson
import structlog
from fastapi.concurrency import run_in_threadpool

from rca.deadline import Deadline
from rca.errors import InvalidInput, RcaError
from rca.runbook.headline import headline
from rca.runbook.phrases import plain
from rca.window.memory import refuse_large
from rca_api.diagnoses import repository
from rca_api.diagnoses.service import queued
from rca_api.diagnoses.stored import read_stored
from rca_api.diagnoses.work import StoredWindow, store
from rca_api.hooks.schemas import Alert, AlertAnswer, AlertGroup
from rca_api.hooks.sources import Sources, WantedWindow
from rca_api.incidents.announce import incident_url
from rca_api.incidents.repository import open_incident
from rca_api.shell.processes.process import Context
from rca_api.shell.requests.problems import ProblemError
from rca_api.shell.state import State
from rca_api.webhooks.messages import ALERT_NAME

#: Most jobs of one message; the others are skipped.
MAX_JOBS = 16
#: Windows end at whole minutes, so that messages at the same time have one window.
_MINUTE = 60.0
#: Share of the time left in which a source has to answer. The rest is for its error, or the diagnosis.
_READING_SHARE = 0.8
_log = structlog.stdlib.get_logger("rca_api.hooks")


@dataclass(frozen=True)
class JobAlerts:
    """A job, and the alerts about it."""

    wanted: WantedWindow
    fingerprints: list[str] = field(default_factory=list)


def jobs_of(group: AlertGroup, sources: Sources, now: float) -> tuple[list[JobAlerts], list[AlertAnswer]]:
    """The jobs that a group is about, with the earliest begin of their alerts; and the alerts without one.

    Parameters
    ----------
    now : float, Unix seconds
    """
    found: dict[tuple[str | None, ...], JobAlerts] = {}
    skipped = []
    for alert in group.alerts:
        names = [alert.fingerprint]
        reason = _not_asked(alert)
        if reason is not None:
            skipped.append(AlertAnswer(fingerprints=names, state="skipped", detail=reason))
            continue
        try:
            wanted = sources.wanted(alert.labels, alert.startsAt.timestamp(), now)
        except InvalidInput as error:
            skipped.append(
                AlertAnswer(fingerprints=names, state="skipped", detail=error.message, hint=error.hint)
            )
            continue
        key = wanted.source.url, wanted.job, wanted.namespace, wanted.node
        known = found.get(key)
        if known is None:
            found[key] = JobAlerts(wanted, names)
        else:
            begin = min(known.wanted.start, wanted.start)
            found[key] = JobAlerts(replace(wanted, start=begin), known.fingerprints + names)
    jobs = list(found.values())
    skipped += [
        AlertAnswer(
            fingerprints=job.fingerprints,
            state="skipped",
            job_id=job.wanted.job,
            detail=f"a message is answered for {MAX_JOBS} jobs at most",
            hint="group alerts by the label of the job: group_by: [job_id]",
        )
        for job in jobs[MAX_JOBS:]
    ]
    return jobs[:MAX_JOBS], skipped


def _not_asked(alert: Alert) -> str | None:
    """Why an alert is skipped; None if it is answered."""
    if alert.status == "resolved":
        return "the alert is resolved"
    if alert.labels.get("alertname") == ALERT_NAME:
        return "the alert is about an incident of this service"
    return None


def read_and_store(context: Context, wanted: WantedWindow, deadline: Deadline) -> StoredWindow:
    """Read the window of a job from its source, and store it; in a process of the pool."""
    with context.stage("decode"):
        window = wanted.read(_READING_SHARE * deadline.left())
        refuse_large(window, context.max_memory_bytes)
    return store(context, window)


async def answered(
    state: State, group: AlertGroup, now: float, *, asked_by: str | None, request_id: str
) -> list[AlertAnswer]:
    """Diagnose each job of a group; one that fails does not keep the others from an answer.

    Raises
    ------
    ProblemError
        ``source-error`` if no window can be read, so that Alertmanager sends the group again.
    """
    jobs, answers = jobs_of(group, state.sources, now // _MINUTE * _MINUTE)
    for each in answers:
        _log.info("alerts are skipped", fingerprints=each.fingerprints, reason=each.detail, hint=each.hint)
    deadline = Deadline.after(state.settings.deadline_seconds)

    async def one(job: JobAlerts) -> AlertAnswer:
        async with state.hook_slots:
            return await _diagnosed(state, job, deadline, asked_by=asked_by, request_id=request_id)

    found = await asyncio.gather(*map(one, jobs))
    if found and all(each.state == "failed" and each.diagnosis_id is None for each in found):
        raise ProblemError("source-error", found[0].detail or "no window can be read", hint=found[0].hint)
    return [*found, *answers]


async def _diagnosed(
    state: State, job: JobAlerts, deadline: Deadline, *, asked_by: str | None, request_id: str
) -> AlertAnswer:
    answer = AlertAnswer(fingerprints=job.fingerprints, state="failed", job_id=job.wanted.job)
    try:
        window = await state.pool.run(read_and_store, job.wanted, deadline, deadline=deadline)
        diagnosis_id = await queued(state, window, asked_by, request_id)
    except (RcaError, ProblemError) as error:
        if isinstance(error, RcaError):
            detail, hint = error.message, error.hint
        else:
            detail, hint = error.detail, error.members.get("hint")
        _log.warning("the window of an alert cannot be read", job_id=job.wanted.job, reason=detail)
        if isinstance(error, InvalidInput):
            # Sent again, the alert would name no other job.
            answer = answer.model_copy(update={"state": "skipped"})
        return answer.model_copy(update={"detail": detail, "hint": hint})
    await state.dispatcher.wait_for(diagnosis_id, deadline.left())
    facts = await run_in_threadpool(_facts, state, diagnosis_id)
    return answer.model_copy(update={"diagnosis_id": diagnosis_id, **facts})


def _facts(state: State, diagnosis_id: str) -> Mapping[str, str | None]:
    """What an answer says about a diagnosis that may have finished."""
    with state.database.reading() as session:
        row = repository.find(session, diagnosis_id)
        if row is None or row.document is None:
            if row is not None and row.state == repository.FAILED:
                problem = orjson.loads(row.problem or b"{}")
                return {"state": "failed", "detail": problem.get("detail", "the diagnosis failed")}
            return {"state": "queued", "detail": "the diagnosis is not finished yet"}
        incident = open_incident(session, row.job_id)
        job_id, document = row.job_id, row.document
        found = None if incident is None else incident.id
    known = {
        "state": "diagnosed",
        "job_id": job_id,
        "incident_id": found,
        "url": None if found is None else incident_url(state.settings.public_url, found),
    }
    try:
        diagnosis = read_stored(document)
    except ProblemError as error:
        return {**known, "detail": error.detail}
    return {**known, "verdict": diagnosis.verdict, "headline": plain(headline(diagnosis))}
