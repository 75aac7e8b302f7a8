"""Files and access of `/ui`, without a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings

pytestmark = pytest.mark.system


STATIC = Path(create_app.__code__.co_filename).parent / "ui" / "static"


def test_the_page_and_all_its_files_are_served_from_here(client: TestClient) -> None:
    page = client.get("/ui")
    policy = page.headers["content-security-policy"]
    assert "'unsafe" not in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"<script(?![^>]* src=)|<style| style=", page.text)
    for path in STATIC.rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), path
        for name in re.findall(r'from "(\.[^"]+)"', text):
            assert (path.parent / name).is_file(), (path, name)
        assert client.get(f"/ui/files/{path.relative_to(STATIC)}").status_code == 200


def test_files_outside_the_folder_are_not_served(client: TestClient) -> None:
    assert client.get("/ui/files/..%2fsummary.py").status_code == 404


def test_the_root_leads_to_the_page(client: TestClient) -> None:
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/ui")


def test_the_page_is_no_part_of_the_api(client: TestClient) -> None:
    assert isinstance(client.app, FastAPI)
    found = [route for route in client.app.routes if str(getattr(route, "path", "")).startswith("/ui")]
    assert found
    assert not [route for route in found if getattr(route, "include_in_schema", False)]


@pytest.mark.parametrize(("auth", "needed"), [("off", False), ("keys", True)])
def test_the_page_learns_whether_a_key_is_needed(tmp_path: Path, auth: Any, needed: bool) -> None:
    client = TestClient(create_app(Settings(data_dir=tmp_path, auth=auth)))
    assert client.get("/ui/access").json() == {"keys": needed, "sign_in": False}


def test_the_text_of_a_diagnosis_needs_a_key(tmp_path: Path) -> None:
    client = TestClient(create_app(Settings(data_dir=tmp_path, auth="keys")))
    assert client.get(f"/ui/diagnoses/{'0' * 32}").status_code == 401
