"""`/v1/training-runs` over HTTP, without a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from rca_api.shell.store.base import new_id, now
from rca_api.training_runs import repository
from rca_api.training_runs.repository import Terms
from rca_api.training_runs.schemas import DEFAULT_SEED, DEFAULT_WINDOWS
from rca_api.training_runs.tables import TrainingRunRow
from tests.for_each import for_each

pytestmark = pytest.mark.system

URL = "/v1/training-runs"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def collections(place: Path) -> Path:
    """A folder with one collection, and what is none."""
    folder = place / "collections"
    (folder / "incidents").mkdir(parents=True)
    (folder / "incidents" / "manifest.json").write_text("{}")
    (folder / "notes").mkdir()
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "manifest.json").write_text("{}")
    (folder / "linked").symlink_to(elsewhere)
    return folder


@pytest.fixture(scope="module")
def app(place: Path, collections: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(data_dir=place / "data", collections_dir=collections))) as held:
        yield held


@pytest.fixture
def client(app: TestClient) -> TestClient:
    """Without runs of the test before."""
    with state(app).database.session() as session:
        session.execute(delete(TrainingRunRow))
    return app


def state(client: TestClient) -> State:
    found: State = client.app.state.parts  # type: ignore[attr-defined]
    return found


def work_off(client: TestClient) -> None:
    """What a worker would do."""
    with state(client).database.session() as session:
        row = repository.claim(session, "worker", now(), Terms())
        assert row is not None
        repository.finish(session, row.id, "worker", "failed", now(), problem={"code": "c", "detail": "d"})


def test_an_order_is_stored_and_can_be_followed(client: TestClient) -> None:
    told = client.post(URL, json={"windows": 300, "collections": ["incidents", "incidents"]})
    assert told.status_code == 202
    followed = client.get(told.headers["Location"])
    assert followed.status_code == 200
    assert followed.json() == told.json()
    assert told.json()["state"] == "queued"
    assert told.json()["order"] == {
        "windows": 300,
        "seed": DEFAULT_SEED,
        "collections": ["incidents"],
        "include_feedback": False,
        "gate_windows": None,
    }


def test_a_second_order_is_refused_with_the_address_of_the_active_run(client: TestClient) -> None:
    first = client.post(URL, json={})
    second = client.post(URL, json={})
    assert (second.status_code, second.json()["code"]) == (409, "conflict")
    assert second.headers["Location"] == first.headers["Location"]
    work_off(client)
    assert client.post(URL, json={}).status_code == 202


@for_each(
    "name",
    ["../elsewhere", "/etc", "linked", "notes", "none", "http://169.254.169.254/", "feedback", "", ".."],
)
def test_unknown_collections_are_refused(client: TestClient, name: str) -> None:
    told = client.post(URL, json={"collections": [name]})
    assert (told.status_code, told.json()["code"]) == (422, "invalid-parameters")


@for_each("body", [{"windows": 3}, {"seed": -1}, {"tracking_uri": "http://x"}, {"windows": "many"}, []])
def test_invalid_orders_are_refused(client: TestClient, body: object) -> None:
    assert client.post(URL, json=body).status_code == 422


def test_a_run_that_has_ended_cannot_be_cancelled(client: TestClient) -> None:
    place = client.post(URL, json={}).headers["Location"]
    told = client.post(f"{place}/cancel")
    assert (told.status_code, told.json()["state"]) == (202, "cancelled")
    assert client.post(f"{place}/cancel").status_code == 202
    other = client.post(URL, json={}).headers["Location"]
    work_off(client)
    assert client.post(f"{other}/cancel").json()["detail"] == "the run has failed already"
    assert client.get(other).json()["problem"] == {"code": "c", "detail": "d"}
    assert client.post(f"{URL}/{new_id()}/cancel").status_code == 404
    assert client.get(f"{URL}/{new_id()}").status_code == 404


def test_runs_are_listed_page_by_page_the_newest_first(client: TestClient) -> None:
    made = []
    for _ in range(5):
        made.append(client.post(URL, json={}).json()["id"])
        work_off(client)
    found, url = [], f"{URL}?limit=2"
    for _ in range(3):
        page = client.get(url)
        found += [each["id"] for each in page.json()["items"]]
        url = page.links.get("next", {}).get("url", "")
    assert (found, url) == (made[::-1], "")


def test_the_defaults_are_those_of_the_command() -> None:
    run = pytest.importorskip("rca.lab.training.run")
    assert (DEFAULT_WINDOWS, DEFAULT_SEED) == (run.DEFAULT_WINDOWS, run.DEFAULT_SEED)
