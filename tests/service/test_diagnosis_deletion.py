"""`DELETE /v1/diagnoses/{id}`: all that was derived from a diagnosis goes, and the rest is consistent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answers_made_up import answer, kept
from incident_service import live, service_without_model, state_of
from sqlalchemy import func, select
from starlette.testclient import TestClient

from rca.window.window import Window
from rca_api.diagnoses.keys import Hold, Key
from rca_api.diagnoses.tables import BlameRow, DiagnosisRow, IdempotencyRow, WindowRow
from rca_api.feedback.tables import FeedbackRow
from rca_api.incidents.tables import ObservationRow
from rca_api.models.shadow_comparison import ShadowRow
from rca_api.nodes.repository import NodeExposureRow
from rca_api.shell.security.authority import Authority
from rca_api.shell.security.principal import Principal, Scope
from rca_api.shell.store.base import Base
from rca_api.webhooks.tables import DeliveryRow
from tests.for_each import for_each


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    with service_without_model(database_url, tmp_path) as held:
        yield held


def count(client: TestClient, table: type[Base]) -> int:
    with state_of(client).database.reading() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def gone(client: TestClient, diagnosis_id: str) -> None:
    path = f"/v1/diagnoses/{diagnosis_id}"
    deleted = client.delete(path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert client.get(path).json()["code"] == "not-found"
    assert client.delete(path).status_code == 404


def test_everything_derived_from_it_goes(client: TestClient) -> None:
    (found,) = live(client, "nic_degradation")
    client.post(f"/v1/diagnoses/{found}/feedback", json={"verdict": "confirmed"})
    with state_of(client).database.session() as session:
        agreed = {"mode_agrees": True, "cause_agrees": True, "ranks_agree": True}
        row = ShadowRow(diagnosis_id=found, version=1, champion_sha256="a", challenger_sha256="b", **agreed)
        row.champion = row.challenger = {}
        session.add(row)
    gone(client, found)
    for table in (DiagnosisRow, BlameRow, ObservationRow, FeedbackRow, ShadowRow, NodeExposureRow):
        assert count(client, table) == 0, table
    assert client.get("/v1/nodes").json()["items"] == []
    assert client.get("/v1/feedback").json()["items"] == []


def test_its_incident_is_recounted_and_its_events_stay(client: TestClient) -> None:
    first, second, last = live(client, "nic_degradation", "nic_degradation", "nic_degradation")
    (before,) = client.get("/v1/incidents").json()["items"]
    assert before["seconds_lost"] == pytest.approx(30.0)
    gone(client, first)
    (after,) = client.get("/v1/incidents").json()["items"]
    assert (after["windows"], after["seconds_lost"]) == (2, pytest.approx(20.0))
    detail = client.get(f"/v1/incidents/{before['id']}").json()
    assert [each["diagnosis_id"] for each in detail["diagnoses"]] == [last, second]
    (opened,) = detail["timeline"]
    assert (opened["kind"], opened["diagnosis_id"]) == ("opened", None)
    # The job goes on as usual.
    live(client, "healthy", "healthy", "healthy", first=3)
    assert client.get("/v1/incidents").json()["items"][0]["state"] == "resolved"


def records(client: TestClient) -> list[tuple[Any, ...]]:
    row = NodeExposureRow
    columns = (row.node, row.job_id, row.first_seen, row.last_seen, row.windows)
    with state_of(client).database.reading() as session:
        return [tuple(each) for each in session.execute(select(*columns).order_by(row.node))]


@pytest.mark.parametrize("deleted", [0, 1, 2])
@pytest.mark.parametrize("said", [("healthy",) * 3, ("healthy", "unsure", "nic_degradation")])
def test_node_records_are_as_if_it_had_never_been(
    tmp_path: Path, said: tuple[str, ...], deleted: int
) -> None:
    with service_without_model(f"sqlite:///{tmp_path / 'one.db'}", tmp_path) as one:
        gone(one, live(one, *said)[deleted])
        found = records(one)
    with service_without_model(f"sqlite:///{tmp_path / 'other.db'}", tmp_path) as other:
        for number, each in enumerate(said):
            if number != deleted:
                live(other, each, first=number)
        assert found == records(other)


@pytest.fixture
def stored(client: TestClient, make_window: Any) -> Any:
    """Diagnose a window, with an idempotency key."""
    state = state_of(client)

    def diagnosed(job_id: str = "job", name: str = "key") -> tuple[str, str]:
        window: Window = make_window(2, 3)
        digest = state.windows.put(
            replace(window, job=window.job.model_copy(update={"job_id": job_id}))
        ).digest
        hold = state.keys.take(Key("", name, digest))
        assert isinstance(hold, Hold)
        found = answer()
        journal = replace_on_diagnosed(state)
        journal.record(kept(digest=digest, job_id=job_id), found, asked_by=None, hold=hold)
        return found.diagnosis_id, digest

    return diagnosed


def replace_on_diagnosed(state: Any) -> Any:
    """The journal without incidents, which made-up documents do not serve."""
    journal = state.journal
    journal.on_diagnosed = ()
    return journal


def test_its_window_and_key_go_unless_another_diagnosis_uses_the_window(
    client: TestClient, stored: Any
) -> None:
    (one, digest), (other, same) = stored(name="one"), stored(name="other")
    assert digest == same
    gone(client, one)
    assert state_of(client).windows.has(digest)
    assert (count(client, WindowRow), count(client, IdempotencyRow)) == (1, 1)
    gone(client, other)
    assert not state_of(client).windows.has(digest)
    assert (count(client, WindowRow), count(client, IdempotencyRow)) == (0, 0)


def test_a_diagnosis_is_deleted_only_when_it_has_ended(client: TestClient, make_window: Any) -> None:
    state = state_of(client)
    digest = state.windows.put(make_window(2, 3)).digest
    found = state.journal.enqueue(kept(digest=digest), asked_by=None, most=10)

    def refused(as_: str) -> None:
        answered = client.delete(f"/v1/diagnoses/{found}")
        assert (answered.status_code, answered.json()["code"]) == (409, "conflict")
        assert answered.json()["detail"] == f"the diagnosis is {as_}"

    refused("queued")
    (claimed,) = state.journal.claim("owner", 60.0, 1)
    refused("running")
    assert replace_on_diagnosed(state).complete("owner", answer(claimed.diagnosis_id))
    gone(client, found)


@for_each("scope", list(Scope))
def test_only_admins_delete(client: TestClient, scope: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = live(client, "healthy")
    caller = Principal("key:1", "x", frozenset({scope}))
    monkeypatch.setattr(Authority, "identify", lambda *_: caller)
    status = client.delete(f"/v1/diagnoses/{found}").status_code
    assert status == (204 if scope is Scope.admin else 403)


def test_an_incident_without_windows_is_resolved(client: TestClient) -> None:
    client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/"})
    one, other = live(client, "nic_degradation", "nic_degradation")
    gone(client, one)
    assert [each["state"] for each in client.get("/v1/incidents").json()["items"]] == ["open"]
    gone(client, other)
    (left,) = client.get("/v1/incidents").json()["items"]
    assert (left["windows"], left["seconds_lost"], left["nodes"]) == (0, 0.0, [])
    assert (left["state"], left["resolution"]) == ("resolved", "deleted")
    path = f"/v1/incidents/{left['id']}"
    assert [each["kind"] for each in client.get(path).json()["timeline"]] == ["opened", "resolved"]
    page = client.get(path, headers={"Accept": "text/markdown"}).text
    assert "all its diagnoses were deleted" in page
    with state_of(client).database.reading() as session:
        assert set(session.scalars(select(DeliveryRow.event))) == {"incident.opened", "incident.resolved"}
    # The job may have the same fault again, also in the same window.
    live(client, "nic_degradation", first=1)
    again, _ = client.get("/v1/incidents").json()["items"]
    assert (again["state"], again["windows"]) == ("open", 1)


def test_a_resolved_incident_without_windows_stays_as_it_is(client: TestClient) -> None:
    found = live(client, "nic_degradation", "healthy", "healthy", "healthy")
    for each in found:
        gone(client, each)
    (left,) = client.get("/v1/incidents").json()["items"]
    assert (left["windows"], left["resolution"]) == (0, "healthy")
    assert len(client.get(f"/v1/incidents/{left['id']}").json()["timeline"]) == 2
