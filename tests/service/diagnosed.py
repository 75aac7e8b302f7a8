"""Diagnoses by hand: what a job's window said, stored as the service stores it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from sqlalchemy.orm import Session

from rca.window.causes import SPECS
from rca_api.diagnoses.tables import BlameRow, DiagnosisRow
from rca_api.incidents.state_machine import Hysteresis
from rca_api.shell.state import OnDiagnosed
from rca_api.shell.store.base import new_id

START = 1_795_000_000.0
SECONDS = 60.0
#: Opens incidents at the first slow or stopped window, and never reopens them.
SETTINGS = Hysteresis(sure_probability=0.5, opening_windows=2, reopen_seconds=0.0, silence_seconds=3600.0)


class Clock:
    """The service's time, as far as a test is concerned."""

    def __init__(self) -> None:
        self.at = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
        self.ticks = 0.0

    def __call__(self) -> datetime:
        return self.at

    def go(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
        self.ticks += seconds

    def set(self, seconds: float) -> None:
        """Somebody sets the clock: no time passes."""
        self.at += timedelta(seconds=seconds)


def document(diagnosis_id: str, job: str, said: str, **more: Any) -> dict[str, Any]:
    """`said` is ``healthy``, ``unsure``, ``suspect`` (certainly slow, cause open), a cause or ``unknown``."""
    sick = said in SPECS
    mode = "healthy" if not sick else "fail_stop" if SPECS[said].type == "fail_stop" else "fail_slow"
    mode = "fail_slow" if said == "suspect" else mode
    probability = dict.fromkeys(("healthy", "fail_slow", "fail_stop"), 0.05)
    probability[mode] = more.get("mode_probability", 0.97)
    nodes, ranks = more.get("nodes", ["node-1"]), more.get("ranks", [2, 3])
    seconds = more.get("seconds_per_step", 0.1) if mode != "healthy" else 0.0
    cause = {
        "cause": said,
        "ranks": ranks,
        "nodes": nodes,
        "probability": more.get("probability", 0.9),
        "seconds_per_step": seconds,
        "interval": [seconds, seconds],
        "share": 1.0,
        "owner": SPECS[said].owner if sick else "either",
        "evidence": [],
    }
    straggler = {
        "ranks": ranks,
        "nodes": nodes,
        "scope": "node",
        "straggler_type": None,
        "pattern": "persistent",
        "probability": 0.9,
        "first_step": None,
        "last_step": None,
    }
    return {
        "format": 1,
        "diagnosis_id": diagnosis_id,
        "window_id": None,
        "job_id": job,
        "created_at": "2026-11-21T20:00:00Z",
        "model": {"name": "baseline", "version": "1", "sha256": "0" * 64},
        "failure_mode": mode,
        "failure_mode_probability": probability,
        "slowdown": {
            "ratio": 1.2,
            "seconds_per_step": seconds,
            "versus_own_past": None,
            "interval": [seconds, seconds],
            "gpu_hours_lost": seconds * 100 * 8 / 3600,
        },
        "stragglers": [straggler] if sick else [],
        "causes": [cause] if sick else [],
        "since": more.get("since"),
        "until": more.get("until"),
        "unexplained_seconds_per_step": 0.0,
        "abstained": said in ("unsure", "suspect"),
        "abstention_reason": {"code": "cause_not_certain", "sentence": "two causes fit"}
        if said == "suspect"
        else None,
        "next_check": "",
        "actions": more.get("actions", []),
        "missing_signals": [],
        "quality": {
            "rows_used": 800,
            "rows_unused": 0,
            "steps_used": 100,
            "warmup_steps": 0,
            "metric_samples_used": 0,
            "metric_samples_unused": 0,
            "events_used": 0,
            "events_unused": 0,
            "unknown_metrics": [],
            "notes": [],
        },
    }


def diagnosed(
    session: Session,
    on_diagnosed: OnDiagnosed | tuple[OnDiagnosed, ...] = (),
    *,
    job: str = "job",
    number: float = 0,
    said: str = "healthy",
    length: float = SECONDS,
    job_nodes: list[str] | None = None,
    digest: str | None = None,
    **more: Any,
) -> DiagnosisRow:
    """Store the diagnosis of the job's `number`-th window and call the callbacks."""
    found = new_id()
    told = document(found, job, said, **more)
    causes = told["causes"]
    row = DiagnosisRow(
        id=found,
        state="done",
        job_id=job,
        window_start=START + number * SECONDS,
        window_end=START + number * SECONDS + length,
        window_digest=digest,
        failure_mode=told["failure_mode"],
        abstained=told["abstained"],
        cause=causes[0]["cause"] if causes else None,
        seconds_per_step=told["slowdown"]["seconds_per_step"],
        document=orjson.dumps(told),
        world_size=8,
        nodes=job_nodes if job_nodes is not None else [f"node-{i}" for i in range(4)],
    )
    row.blames = [
        BlameRow(
            place=1,
            cause=cause["cause"],
            node=node,
            owner=cause["owner"],
            probability=cause["probability"],
            seconds_per_step=cause["seconds_per_step"],
        )
        for cause in causes
        for node in cause["nodes"] or [None]
    ]
    session.add(row)
    session.flush()
    for tell in on_diagnosed if isinstance(on_diagnosed, tuple) else (on_diagnosed,):
        tell(session, row)
    return row
