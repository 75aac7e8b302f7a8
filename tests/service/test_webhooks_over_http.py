"""Webhooks over HTTP: made, changed, deleted, and their deliveries watched and sent again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from incident_service import live, service_without_model, state_of
from receivers import receiver, send_until
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from tests.for_each import for_each

pytestmark = [pytest.mark.system, pytest.mark.smoke]


@pytest.fixture
def client(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    with service_without_model(database_url, tmp_path) as held:
        yield held


def test_a_webhook_from_its_creation_to_its_end(client: TestClient) -> None:
    with receiver() as held:
        made = client.post("/v1/webhooks", json={"url": held.url, "causes": ["nic_degradation"]})
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        path = made.headers["location"]
        secret = made.json()["secret"]
        assert secret.startswith("whsec_")
        assert secret not in client.get(path).text + client.get("/v1/webhooks").text
        changed = client.patch(path, json={"description": "pager", "job_id": "job"})
        assert (changed.json()["description"], changed.json()["causes"]) == ("pager", ["nic_degradation"])
        live(client, "nic_degradation")
        (waiting,) = client.get(f"{path}/deliveries?state=pending").json()["items"]
        assert client.post(f"{path}/deliveries/{waiting['id']}/retry").json()["code"] == "conflict"
        send_until(state_of(client).webhook_dispatcher, lambda: bool(held.received))
        (sent,) = client.get(f"{path}/deliveries").json()["items"]
        assert (sent["state"], sent["last_status"], held.ids) == ("delivered", 204, [waiting["id"]])
    exposition = client.get("/metrics").text
    assert 'rca_incident_events_total{kind="opened"} 1.0' in exposition
    assert 'rca_webhook_attempts_total{outcome="delivered"} 1.0' in exposition
    assert client.delete(path).status_code == 204
    assert client.get(path).json()["code"] == "not-found"
    assert client.get(f"{path}/deliveries").json()["code"] == "not-found"


def test_urls_are_checked_on_creation_and_on_change(tmp_path: Path) -> None:
    held = TestClient(create_app(Settings(data_dir=tmp_path)))
    state_of(held).database.upgrade()
    good = held.post("/v1/webhooks", json={"url": "https://hooks.example.org/"})
    bad = held.post("/v1/webhooks", json={"url": "http://hooks.example.org/"})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid-parameters")
    moved = held.patch(good.headers["location"], json={"url": "gopher://hooks.example.org/"})
    assert moved.status_code == 422
    state_of(held).database.close()


def test_the_key_of_a_receiver_does_not_go_to_a_new_url(tmp_path: Path) -> None:
    held = TestClient(create_app(Settings(data_dir=tmp_path)))
    state_of(held).database.upgrade()
    wanted = {"url": "https://events.example.org/", "form": "pagerduty"}
    assert held.post("/v1/webhooks", json=wanted).status_code == 422
    made = held.post("/v1/webhooks", json={**wanted, "routing_key": "abc"})
    assert "abc" not in made.text
    moved = {"url": "https://other.example.org/"}
    assert held.patch(made.headers["location"], json=moved).status_code == 422
    assert held.patch(made.headers["location"], json={**moved, "routing_key": "def"}).status_code == 200
    plain = held.post("/v1/webhooks", json={"url": "https://hooks.example.org/"})
    assert held.patch(plain.headers["location"], json={"routing_key": "abc"}).status_code == 422
    state_of(held).database.close()


@for_each("host", ["127.0.0.1", "[::127.0.0.1]", "169.254.169.254", "2130706433", "localhost"])
def test_a_private_address_is_refused_on_creation_and_on_change(tmp_path: Path, host: str) -> None:
    held = TestClient(create_app(Settings(data_dir=tmp_path)))
    state_of(held).database.upgrade()
    good = held.post("/v1/webhooks", json={"url": "https://hooks.example.org/"})
    refused = held.post("/v1/webhooks", json={"url": f"https://{host}/hook"})
    moved = held.patch(good.headers["location"], json={"url": f"https://{host}/hook"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid-parameters")
    assert (moved.status_code, moved.json()["detail"]) == (422, refused.json()["detail"])
    assert len(held.get("/v1/webhooks").json()["items"]) == 1
    state_of(held).database.close()


def test_dead_deliveries_are_listed_and_can_be_retried(client: TestClient) -> None:
    from rca_api.webhooks.tables import DeliveryRow

    path = client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/"}).headers["location"]
    live(client, "nic_degradation")
    with state_of(client).database.session() as session:
        session.query(DeliveryRow).update({"state": "dead", "attempts": 8, "last_error": "gone"})
    (dead,) = client.get(f"{path}/deliveries?state=dead").json()["items"]
    assert dead["last_error"] == "gone"
    again = client.post(f"{path}/deliveries/{dead['id']}/retry")
    assert (again.status_code, again.json()["state"], again.json()["attempts"]) == (202, "pending", 0)


def test_the_running_service_sends_deliveries(tmp_path: Path) -> None:
    given_settings = Settings(
        data_dir=tmp_path, webhook_http=True, webhook_hosts=("127.0.0.1",), incident_sure_probability=0.5
    )
    with receiver() as held, TestClient(create_app(given_settings)) as client:
        client.post("/v1/webhooks", json={"url": held.url})
        live(client, "nic_degradation")
        for _ in range(500):
            if held.received:
                break
            client.portal.call(_nap)  # type: ignore[union-attr]
        assert len(held.received) == 1


async def _nap() -> None:
    import asyncio

    await asyncio.sleep(0.02)


def test_bodies_that_are_too_large_are_refused(client: TestClient) -> None:
    text = b'"' + b"x" * (1 << 20) + b'"'
    declared = client.post("/v1/webhooks", content=text)
    streamed = client.post("/v1/webhooks", content=iter([text[:1000], text[1000:]]))
    assert [each.json()["code"] for each in (declared, streamed)] == ["too-large"] * 2
    broken = client.post("/v1/webhooks", content=b"\xff", headers={"Content-Type": "application/json"})
    assert broken.status_code == 400
