"""The agent runs the real kubectl against a small API server: only the job's nodes and pods are touched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from acting import KUBERNETES, SPARE, Acting
from api_server import ApiServer, api_server
from played_cluster import PlayedService

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="not installed: kubectl"),
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with api_server(tmp_path) as (held, configuration):
        monkeypatch.setenv("KUBECONFIG", str(configuration))
        # The cache of kubectl.
        monkeypatch.setenv("HOME", str(tmp_path))
        yield held


def acting(folder: Path, **option: object) -> Acting:
    return Acting(folder, PlayedService(**option), {**KUBERNETES, **SPARE}, mode="automatic")


def test_a_node_is_cordoned_and_the_pods_of_the_job_evicted(tmp_path: Path, server: ApiServer) -> None:
    mine = acting(tmp_path)
    mine.round()
    assert server.writes == []
    mine.round()
    assert mine.newest.state == "done"
    assert server.writes == [
        f'patch node-2 {{"straggler-rca.io/incident": "{"a" * 32}"}}',
        'patch node-2 {"unschedulable": true}',
        "evict llama-2",
        "evict llama-3",
    ]


@pytest.mark.parametrize("name", ["db-1", "--selector=kubernetes.io/os=linux", "node-9"])
def test_a_node_without_the_job_is_not_touched(name: str, tmp_path: Path, server: ApiServer) -> None:
    mine = acting(tmp_path, nodes=["node-2", name])
    for _ in range(3):
        mine.round()
    assert server.writes == []
    assert mine.journal.all() == []
