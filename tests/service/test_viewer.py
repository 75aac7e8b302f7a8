"""`/docs` shows the API's document and loads nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from rca_api.ui import viewer


@pytest.fixture
def client(client: TestClient) -> TestClient:
    pytest.importorskip("fastapi_offline")
    return client


def test_everything_the_page_names_is_here(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "://" not in page.text
    named = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert len(named) == 3
    kinds = [client.get(path) for path in named]
    assert [answer.status_code for answer in kinds] == [200, 200, 200]
    types = {answer.headers["content-type"].partition(";")[0] for answer in kinds}
    assert types == {"text/css", "text/javascript"}


def test_the_viewer_shows_our_document(client: TestClient) -> None:
    [url] = re.findall(r'url: "([^"]+)"', client.get("/docs/start.js").text)
    assert client.get(url).json()["info"]["title"] == "straggler-rca"
    assert "SwaggerUIBundle" in client.get("/docs/files/swagger-ui-bundle.js").text


def test_the_policy_allows_no_other_site_and_no_script_in_the_page(client: TestClient) -> None:
    page = client.get("/docs")
    policy = page.headers["content-security-policy"]
    assert "://" not in policy
    [scripts] = re.findall(r"script-src ([^;]+)", policy)
    assert scripts == "'self'"
    assert not re.search(r"<script(?! src=)", page.text)


def test_it_is_no_part_of_the_api(client: TestClient) -> None:
    assert not [path for path in client.get("/openapi.json").json()["paths"] if path.startswith("/docs")]


def test_files_outside_its_folder_are_not_served(client: TestClient) -> None:
    assert client.get("/docs/files/..%2f__init__.py").status_code == 404


def test_without_the_viewer_the_service_starts_and_says_where_the_document_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(viewer, "_files", lambda: None)
    answer = TestClient(create_app(Settings(data_dir=tmp_path))).get("/docs")
    assert (answer.status_code, answer.json()["code"]) == (501, "missing-extra")
    assert "/openapi.json" in answer.json()["detail"]
