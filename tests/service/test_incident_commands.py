"""`rca incidents` against a service."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from incident_service import live, service_without_model
from starlette.testclient import TestClient

from rca.cli import run as run_command_line
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.smoke]
Incidents = Callable[..., tuple[int, str, str]]


@pytest.fixture
def held(database_url: str, tmp_path: Path) -> Iterator[TestClient]:
    with service_without_model(database_url, tmp_path) as held:
        yield held


@pytest.fixture
def incidents(
    held: TestClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Incidents]:
    """Run `rca incidents` with arguments; gives exit code, output and errors."""
    server = uvicorn.Server(uvicorn.Config(held.app, port=0, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    monkeypatch.setenv("RCA_SERVICE", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            run_command_line(["incidents", *arguments])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    yield run
    server.should_exit = True
    thread.join()


def test_an_incident_is_listed_acknowledged_assigned_muted_and_closed(
    held: TestClient, incidents: Incidents
) -> None:
    assert incidents("list")[:2] == (0, "no open incident\n")
    live(held, "nic_degradation", job="llama")
    live(held, "runtime_gc", job="bert")
    listed = incidents("list")[1].splitlines()
    assert [line.split()[1] for line in listed] == ["job", "bert", "llama"]
    assert "fail-slow, nic_degradation" in listed[2]
    assert "node-1" in listed[2]
    assert "open, seen by anybody" in incidents("acknowledge", "llama")[1]
    assert "ana works on it" in incidents("assign", "llama", "ana")[1]
    assert "muted until" in incidents("mute", "llama", "--for", "2h")[1]
    assert "muted" not in incidents("mute", "llama", "--undo")[1]
    assert "ana" not in incidents("assign", "llama")[1]
    # By the begin of its id, and by the whole one once it is closed.
    (whole,) = [each["id"] for each in json.loads(incidents("list", "--job", "llama", "-f", "json")[1])]
    assert "resolved (a power cap)" in incidents("close", whole[:8], "a power cap")[1]
    assert incidents("show", whole)[1].startswith("# RESOLVED: llama is fail-slow")
    assert len(incidents("list")[1].splitlines()) == 2
    assert len(incidents("list", "--state", "all", "--limit", "1")[1].splitlines()) == 2


def test_an_incident_that_is_not_there_is_named(held: TestClient, incidents: Incidents) -> None:
    live(held, "nic_degradation", job="llama")
    code, _, said = incidents("acknowledge", "bert")
    assert (code, "no open incident of 'bert'" in said) == (2, True)
    code, _, said = incidents("mute", "llama", "--for", "long")
    assert code == 2


def test_errors_are_json_where_answers_are(held: TestClient, incidents: Incidents) -> None:
    for arguments in (("acknowledge", "bert"), ("show", "bert"), ("mute", "bert", "--for", "long")):
        code, _, said = incidents(*arguments, "--format", "json")
        assert code == 2
        assert json.loads(said)["code"] == "invalid-input"
    code, _, said = incidents("show", "bert")
    assert (code, said.startswith("error (invalid-input)")) == (2, True)
    code, _, said = incidents("list", "--format", "json", "--service", "http://127.0.0.1:1")
    assert code == 2
    assert {"code", "detail"} <= json.loads(said).keys()
