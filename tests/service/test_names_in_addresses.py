"""Names that would lead elsewhere or look like others are refused; rows that already have them are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from diagnosed import SETTINGS, Clock, diagnosed
from starlette.testclient import TestClient

from rca.errors import InvalidWindow
from rca.window.schema import TEXT
from rca.window.window import Window
from rca_api.incidents.announce import Announcer
from rca_api.incidents.service import IncidentTracker
from rca_api.nodes.service import Exposures
from rca_api.shell.app import create_app
from rca_api.shell.observability.metrics import Metrics
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State
from tests.for_each import for_each

pytestmark = [pytest.mark.system, pytest.mark.smoke]

#: A mark of direction, none of width, and path segments that clients drop.
OLD_NAMES = ["a\u202eb", "a\u200bb", "..", "a/../b"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = create_app(Settings(data_dir=tmp_path_factory.mktemp("names"), auth="off", processes=1))
    app.state.parts.database.upgrade()
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def parts(client: TestClient) -> State:
    found: State = client.app.state.parts  # type: ignore[attr-defined]
    return found


@for_each(
    "path",
    [
        "/v1/jobs/%2e%2e/incidents",
        "/v1/jobs/%2E%2E/telemetry",
        "/v1/jobs/a%2f%2e%2e%2fb/incidents",
        "/v1/jobs/%2e%2e%2f%2e%2e%2fmetrics%3f/incidents",
        "/v1/jobs/a%E2%80%AEb/incidents",
        "/v1/nodes/%2e/history",
        "/v1/nodes/%2e%2e%2f%2e%2e%2fhealthz/history",
        "/v1/diagnoses?job=%2e%2e",
        "/v1/incidents?node=a%E2%80%8Bb",
        "/v1/incidents?node=a%E3%85%A4",
    ],
)
def test_a_name_that_leads_elsewhere_or_looks_like_another_is_refused(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-parameters")
    flaws = "path segment", "formatting character", "invisible character"
    assert any(flaw in answer.json()["detail"] for flaw in flaws)


@pytest.mark.parametrize(
    "path",
    ["/ui/files/%2e%2e/endpoints.py", "/ui/files/%2e%2e%2fendpoints.py", "/ui/files/..%5cendpoints.py"],
)
def test_no_segment_leads_out_of_the_files_of_the_page(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", OLD_NAMES, ids=ascii)
def test_a_posted_window_with_such_a_name_is_refused(client: TestClient, make_window: Any, name: str) -> None:
    window: Window = make_window(2, 4)
    body = replace(window, job=window.job.model_copy(update={"job_id": name})).to_json()
    answer = client.post("/v1/diagnoses", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-window")
    assert answer.json()["detail"].startswith("job.job_id")


@pytest.mark.parametrize("name", OLD_NAMES, ids=ascii)
def test_stored_rows_with_such_a_name_are_listed_and_shown(client: TestClient, name: str) -> None:
    database = parts(client).database
    tracker = IncidentTracker(SETTINGS, Announcer(Metrics()), Clock())
    with database.session() as session:
        row = diagnosed(
            session,
            (tracker, Exposures()),
            job=name,
            said="cpu_contention",
            nodes=[name],
            job_nodes=[name, "node-2"],
        )
        found = row.id
    for accept in ("application/json", "text/markdown"):
        assert client.get(f"/v1/diagnoses/{found}", headers={"Accept": accept}).status_code == 200
    [incident] = [each for each in client.get("/v1/incidents").json()["items"] if each["job_id"] == name]
    shown = client.get(f"/v1/incidents/{incident['id']}")
    assert (shown.status_code, shown.json()["job_id"]) == (200, name)
    jobs = [each["job_id"] for each in client.get("/v1/diagnoses").json()["items"]]
    assert name in jobs
    assert name in [each["node"] for each in client.get("/v1/nodes").json()["items"]]


def test_a_stored_window_with_such_names_is_read(client: TestClient, make_window: Any) -> None:
    window: Window = make_window(2, 4)
    names = pa.array(["a\u202eb", ".."]).cast(TEXT)
    metrics = pa.table(
        {
            "time": [window.job.start + 1.0] * 2,
            "node": names,
            "rank": pa.array([0, 1], pa.int32()),
            "device": names,
            "name": pa.array(["node_load1"] * 2).cast(TEXT),
            "value": [0.5, 0.5],
        }
    ).select(window.metrics.column_names)
    job = window.job.model_copy(update={"job_id": "..", "framework": "torch\u200b"})
    held = parts(client).windows.put(replace(window, job=job, metrics=metrics))
    answer = client.get(f"/v1/windows/{held.digest}", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["job"]["job_id"]) == (200, "..")
    raw = client.get(f"/v1/windows/{held.digest}")
    assert raw.status_code == 200
    with pytest.raises(InvalidWindow, match="path segment"):
        Window.from_arrow(raw.content, raw.headers["Content-Type"])
