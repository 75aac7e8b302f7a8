"""The service as tests of incidents, feedback and webhooks need it, and jobs that live through diagnoses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diagnosed import diagnosed
from fastapi import FastAPI
from starlette.testclient import TestClient

from rca_api.shell.app import create_app
from rca_api.shell.settings.settings import Settings
from rca_api.shell.state import State


def state_of(client: TestClient) -> State:
    app = client.app
    assert isinstance(app, FastAPI)
    parts: State = app.state.parts
    return parts


@contextmanager
def service_without_model(database_url: str, folder: Path) -> Iterator[TestClient]:
    """The service without its model and its background work, which these tests do not need."""
    settings = Settings(
        data_dir=folder,
        database_url=database_url,
        webhook_http=True,
        webhook_private=True,
        node_priors="on",
        # One sick window is enough for these tests.
        incident_sure_probability=0.5,
        incident_opening_windows=2,
    )
    held = TestClient(create_app(settings), raise_server_exceptions=False)
    state_of(held).database.upgrade()
    try:
        yield held
    finally:
        state_of(held).database.close()


def live(client: TestClient, *said: str, job: str = "job", first: int = 0, **more: Any) -> list[str]:
    """Let a job live through diagnoses; gives their ids."""
    state, found = state_of(client), []
    for number, each in enumerate(said, start=first):
        with state.database.session() as session:
            row = diagnosed(session, state.on_diagnosed, job=job, number=number, said=each, **more)
            found.append(row.id)
    return found


def ids(client: TestClient, path: str, key: str = "id") -> list[str]:
    """Follow the pages of a list to its end, by the Link header."""
    found: list[str] = []
    for _ in range(100):
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        found += [item[key] for item in answer.json()["items"]]
        following = answer.links.get("next")
        assert (following is None) == (answer.json()["next"] is None)
        if following is None:
            return found
        path = following["url"]
    raise AssertionError("the pages never end")
