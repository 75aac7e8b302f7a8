"""A captured fault and its removal through the service: the plan's gain against that of later windows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from incident_service import ids, service_without_model, state_of
from starlette.testclient import TestClient

import rca
from rca.sources.labels import read_label
from rca.window.fragments import between_steps
from rca_api.diagnoses.tables import BlameRow, DiagnosisRow
from rca_api.shell.store.base import new_id

WINDOWS = Path(__file__).parents[2] / "data" / "windows"
#: Python's collector paused one rank of this job. Later the job ran without it.
FAULTY, LATER = "garbage-collection", "healthy-short-hiccup"


def captured(name: str, first: int, last: int) -> rca.Window:
    window = between_steps(rca.read_window(WINDOWS / name), first, last)
    return replace(window, job=window.job.model_copy(update={"job_id": "captured"}))


def diagnosed(client: TestClient, window: rca.Window) -> rca.Diagnosis:
    """Diagnose a window, and store the answer as the service does."""
    found = rca.diagnose(window)
    row = DiagnosisRow(
        id=new_id(),
        state="done",
        job_id=window.job.job_id,
        window_start=window.job.start,
        window_end=window.job.end,
        failure_mode=found.failure_mode,
        abstained=found.abstained,
        cause=found.causes[0].cause if found.causes else None,
        seconds_per_step=found.slowdown.seconds_per_step,
        document=orjson.dumps(found.to_dict()),
        world_size=window.job.world_size,
        nodes=list(window.job.topology.node_names),
    )
    row.blames = [
        BlameRow(
            place=place,
            cause=cause.cause,
            node=node,
            owner=cause.owner,
            probability=cause.probability,
            seconds_per_step=cause.seconds_per_step,
        )
        for place, cause in enumerate(found.causes, 1)
        for node in cause.nodes
    ]
    state = state_of(client)
    with state.database.session() as session:
        session.add(row)
        session.flush()
        for follow in state.on_diagnosed:
            follow(session, row)
    return found


def test_later_windows_show_the_gain_of_a_captured_fault_that_ended(tmp_path: Path) -> None:
    (true,) = read_label(WINDOWS / FAULTY).causes
    assert true.first_step is not None
    assert true.last_step is not None
    with service_without_model(f"sqlite:///{tmp_path}/rca.db", tmp_path) as client:
        window = captured(FAULTY, true.first_step, true.last_step)
        before = diagnosed(client, window)
        assert [cause.cause for cause in before.causes] == ["runtime_gc"]
        (incident,) = ids(client, "/v1/incidents?job=captured")
        path = f"/v1/incidents/{incident}/actions"
        ended = datetime.fromtimestamp(window.job.end + 1, UTC).isoformat()
        given = {"action": "plan_garbage_collection", "taken_at": ended}
        assert client.post(path, json=given).status_code == 201
        for first in (4, 24, 44):
            diagnosed(client, captured(LATER, first, first + 19))
        (action,) = client.get(path).json()["items"]
        (correction,) = client.get("/v1/plans/corrections").json()["corrections"]
    predicted, observed = (action[name]["seconds_per_step_saved"] for name in ("predicted", "observed"))
    assert action["outcome"] == "helped"
    # The collector paused every second step by 44 ms at most, of 118.
    assert observed == pytest.approx(predicted, rel=0.15)
    assert correction["action"] == "plan_garbage_collection"
    assert 0.9 < correction["factor"] < 1.1
