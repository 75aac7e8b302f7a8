"""A database as a year of diagnoses leaves it, written in bulk: jobs, their windows, and their incidents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import insert

import rca
from rca_api.shell.store.base import new_id, now
from rca_api.shell.store.database import Database
from rca_api.shell.store.tables import Base

#: Real windows whose answers are the documents.
_WINDOWS = Path("data/windows")
WINDOWS_OF_A_JOB = 10
NODES_OF_A_JOB = 16
NODES = 2000
_SICK_JOBS = 0.3
_SECONDS = 60.0
_JOBS_AT_ONCE = 500
_DAYS = 365.0
#: Windows are kept for 90 days.
_KEPT_DAYS = 90.0
Rows = dict[str, list[dict[str, Any]]]


def documents() -> dict[str, list[dict[str, Any]]]:
    """Answers to the shipped windows, those of healthy jobs and those of faulty ones."""
    found: dict[str, list[dict[str, Any]]] = {"healthy": [], "sick": []}
    for folder in sorted(path for path in _WINDOWS.iterdir() if path.is_dir()):
        answer = rca.diagnose(rca.read_window(folder)).to_dict()
        found["healthy" if answer["failure_mode"] == "healthy" else "sick"].append(answer)
    return found


def fill(database: Database, n_diagnoses: int, seed: int = 0) -> None:
    """Add `n_diagnoses`, of jobs with ten windows each, spread over a year that ends now.

    Three of ten jobs are faulty from their third window on. Each of those has an incident.
    """
    answers, rng, end = documents(), random.Random(seed), now()  # noqa: S311  (no secret)
    jobs = range(n_diagnoses // WINDOWS_OF_A_JOB)
    for first in range(0, len(jobs), _JOBS_AT_ONCE):
        rows: Rows = {}
        for number in jobs[first : first + _JOBS_AT_ONCE]:
            begin = end - timedelta(days=_DAYS * (1 - number / len(jobs)))
            for table, row in _job(f"job-{number:06}", begin, end, answers, rng):
                rows.setdefault(table, []).append(row)
        with database.session(longest_seconds=600.0) as session:
            for table in Base.metadata.sorted_tables:
                if table.name in rows:
                    session.execute(insert(table), rows[table.name])


def _job(
    job: str, begin: datetime, end: datetime, answers: dict[str, list[dict[str, Any]]], rng: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    nodes = [f"node-{number:05}" for number in sorted(rng.sample(range(NODES), NODES_OF_A_JOB))]
    template = rng.choice(answers["sick"]) if rng.random() < _SICK_JOBS else None
    blamed, incident = rng.choice(nodes), None if template is None else new_id()
    start = begin.timestamp()
    if template is not None:
        yield from _incident(incident, job, begin, start, template, blamed)
    yield "followed_jobs", {"job_id": job, "advanced_at": begin}
    for node in nodes:
        yield (
            "node_exposures",
            {
                "node": node,
                "job_id": job,
                "first_seen": start,
                "last_seen": start + WINDOWS_OF_A_JOB * _SECONDS,
                "windows": WINDOWS_OF_A_JOB,
                "updated_at": begin,
            },
        )
    for number in range(WINDOWS_OF_A_JOB):
        sick = template if number > 1 else None
        answer = sick or rng.choice(answers["healthy"])
        at = begin + timedelta(seconds=number * _SECONDS)
        yield from _diagnosis(job, at, end, answer, nodes, blamed, incident if sick else None)


def _diagnosis(
    job: str,
    at: datetime,
    end: datetime,
    answer: dict[str, Any],
    nodes: list[str],
    blamed: str,
    incident: str | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    found, start = new_id(), at.timestamp()
    digest = new_id() + new_id() if end - at < timedelta(days=_KEPT_DAYS) else None
    cause = answer["causes"][0] if answer["causes"] else None
    if digest is not None:
        used = {"created_at": at, "used_at": at}
        yield "windows", {"digest": digest, "job_id": job, "n_bytes": 20_000, **used}
    yield (
        "diagnoses",
        {
            "id": found,
            "created_at": at,
            "finished_at": at,
            "state": "done",
            "window_digest": digest,
            "job_id": job,
            "window_start": start,
            "window_end": start + _SECONDS,
            "asked_by": "key:0123456789abcdef",
            "request_id": new_id(),
            "failure_mode": answer["failure_mode"],
            "abstained": answer["abstained"],
            "cause": cause["cause"] if cause else None,
            "seconds_per_step": answer["slowdown"]["seconds_per_step"],
            "model_sha256": answer["model"]["sha256"],
            "world_size": 8 * NODES_OF_A_JOB,
            "nodes": nodes,
            "document": orjson.dumps(answer | {"diagnosis_id": found, "job_id": job}),
            "attempts": 0,
        },
    )
    yield (
        "observations",
        {
            "job_id": job,
            "window_end": start + _SECONDS,
            "window_start": start,
            "diagnosis_id": found,
            "incident_id": incident,
            "observed_at": at,
            "ahead": False,
            "verdict": "healthy" if incident is None else "sick",
            "failure_mode": answer["failure_mode"],
            "cause": cause["cause"] if cause else None,
            "place": [blamed] if cause else None,
            "seconds_lost": 0.0 if incident is None else 3.0,
            "gpu_hours_lost": 0.0 if incident is None else 0.1,
        },
    )
    if cause is not None:
        yield (
            "blames",
            {
                "diagnosis_id": found,
                "place": 1,
                "cause": cause["cause"],
                "node": blamed,
                "owner": cause["owner"],
                "probability": cause["probability"],
                "seconds_per_step": cause["seconds_per_step"] or 0.0,
            },
        )


def _incident(
    incident: str | None, job: str, begin: datetime, start: float, answer: dict[str, Any], blamed: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    resolved = begin + timedelta(seconds=WINDOWS_OF_A_JOB * _SECONDS)
    what = {"failure_mode": answer["failure_mode"], "cause": answer["causes"][0]["cause"]}
    yield (
        "incidents",
        {
            "id": incident,
            "job_id": job,
            **what,
            "place": [blamed],
            "opened_at": begin,
            "resolved_at": resolved,
            "resolution": "silence",
            "began": start,
            "ended": resolved.timestamp(),
            "windows": WINDOWS_OF_A_JOB - 2,
            "seconds_lost": 24.0,
            "gpu_hours_lost": 0.8,
            "uncertain": False,
            "reopened": 0,
            "changes": 0,
        },
    )
    for kind, at in (("opened", begin), ("resolved", resolved)):
        yield (
            "incident_events",
            {"incident_id": incident, "kind": kind, "at": at, "window_end": at.timestamp(), **what},
        )
