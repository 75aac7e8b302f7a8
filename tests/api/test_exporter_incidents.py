"""A job that exporters alone show: a suspected incident while a fault lasts, and none while it is healthy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from rca.window.fragments import within
from tests.diagnosis.test_exporters_only import START, TIMES, fleet, only
from tests.shifted_windows import shifted

pytestmark = pytest.mark.system

CLOCK = "DCGM_FI_DEV_SM_CLOCK"
#: Time between two looks, and the part of the fleet's window that a look covers, seconds.
EVERY, COVERED = 30.0, 900.0


def looks(
    client: TestClient, job: str, faulty: tuple[float, float], ends: list[float]
) -> Iterator[dict[str, Any]]:
    """Post the windows that end at these seconds of a fleet with a slow GPU in between; gives the answers."""

    def slow(clock: np.ndarray) -> np.ndarray:
        at = TIMES - START
        return np.where((at >= faulty[0]) & (at < faulty[1]), 0.55 * clock, clock)

    whole = fleet(only(CLOCK, 5, slow), n_nodes=1)
    whole = shifted(whole, 1_795_000_000.0 - START)
    begin = whole.job.start
    for end in ends:
        part = within(whole, begin + end - COVERED, begin + end)
        job_part = part.job.model_copy(update={"job_id": job})
        answer = client.post(
            "/v1/diagnoses",
            content=type(part).from_tables(job_part, metrics=part.metrics).to_json(),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code in (200, 201), answer.text
        yield answer.json()


def test_a_lasting_fault_is_a_suspected_incident_until_it_ends(client: TestClient) -> None:
    onset, over = 1000.0, 1300.0
    ends = list(np.arange(940.0, 1500.0, EVERY))
    opened = resolved = None
    for end, _ in zip(ends, looks(client, "by-exporters", (onset, over), ends), strict=True):
        found = client.get("/v1/jobs/by-exporters/incidents").json()["items"]
        opened = opened or (end if found else None)
        resolved = resolved or (end if found and found[0]["state"] == "resolved" else None)
    assert opened is not None
    assert 0 < opened - onset <= 120
    assert resolved is not None
    assert 0 < resolved - over <= 120
    (incident,) = client.get("/v1/jobs/by-exporters/incidents").json()["items"]
    assert (incident["confidence"], incident["cause"], incident["place"]) == (
        "suspected",
        "gpu_throttling",
        ["node-0"],
    )
    shown = client.get(f"/v1/incidents/{incident['id']}").json()
    assert [each["kind"] for each in shown["timeline"]] == ["suspected", "resolved"]
    assert shown["runbook"].startswith("/v1/runbooks/gpu_throttling?diagnosis=")
    suspected = shown["timeline"][0]["diagnosis_id"]
    judged = client.post(f"/v1/diagnoses/{suspected}/feedback", json={"verdict": "confirmed"})
    assert judged.status_code == 201, judged.text


def test_a_healthy_job_is_certainly_healthy_and_opens_nothing(client: TestClient) -> None:
    ends = list(np.arange(940.0, 1500.0, 2 * EVERY))
    verdicts = {each["verdict"] for each in looks(client, "healthy-by-exporters", (0.0, 0.0), ends)}
    assert verdicts == {"healthy"}
    assert client.get("/v1/jobs/healthy-by-exporters/incidents").json()["items"] == []
