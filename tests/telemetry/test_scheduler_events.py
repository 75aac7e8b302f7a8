"""What schedulers say about an end: Slurm's accounting and events of Kubernetes, alone and beside logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rca
from rca.errors import InvalidInput
from tests.for_each import for_each

SACCT = """JobID|State|ExitCode|Start|End|NodeList|FailedNode
4312|FAILED|1:0|2025-03-01T10:00:00|2025-03-01T12:00:05|gpu[01-02]|None
4312.batch|FAILED|1:0|2025-03-01T10:00:00|2025-03-01T12:00:05|gpu01|
4312.extern|COMPLETED|0:0|2025-03-01T10:00:00|2025-03-01T12:00:05|gpu[01-02]|
4312.0|CANCELLED by 0|0:15|2025-03-01T10:00:00|2025-03-01T12:00:04|gpu01|
4312.1|OUT_OF_MEMORY|0:125|2025-03-01T10:00:00|2025-03-01T12:00:02|gpu02|
"""
AS_COLUMNS = """JobID             State ExitCode                 End        NodeList
------------ ---------- -------- ------------------- ---------------
4312             FAILED      1:0 2025-03-01T12:00:05      gpu[01-02]
4312.1       OUT_OF_ME+    0:125 2025-03-01T12:00:02           gpu02
"""
TIMED_OUT = """JobID|State|ExitCode|End|NodeList|
4312|TIMEOUT|0:0|2025-03-01T12:00:00|gpu[01-02]|
4312.0|FAILED|15:0|2025-03-01T12:00:03|gpu01|
"""


def event(pod: str, reason: str, message: str, second: int, **more: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "name": pod, "namespace": "ml"}
    time = f"2025-03-01T12:00:{second:02}Z"
    return {"involvedObject": about, "reason": reason, "message": message, "firstTimestamp": time, **more}


EVENTS = [
    event("worker-2", "Scheduled", "Successfully assigned ml/worker-2 to gpu-7", 0),
    event("worker-1", "Pulled", "Container image is already present on machine", 0),
    event("worker-1", "BackOff", "Back-off restarting failed container main in pod worker-1", 40),
    event("worker-2", "TaintManagerEviction", "Cancelling deletion of Pod ml/worker-1", 1),
    event("worker-2", "Evicted", "The node was low on resource: memory.", 10),
]


def kubectl(items: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "items": items, "kind": "List"}, indent=4)


def nodes_of(folder: Path) -> list[str]:
    answer = rca.diagnose(rca.read_window(folder))
    assert not answer.abstained
    return [node for each in answer.stragglers for node in each.nodes]


@for_each("text", [SACCT, AS_COLUMNS], ["with separators", "as columns"])
def test_the_step_that_failed_by_itself_names_its_node(tmp_path: Path, text: str) -> None:
    (tmp_path / "accounting").write_text(text)
    assert nodes_of(tmp_path) == ["gpu02"]


def test_a_failed_node_of_the_accounting_is_named(tmp_path: Path) -> None:
    rows = "JobID|State|End|NodeList|FailedNode\n4|NODE_FAIL|2025-03-01T12:00:05|gpu[01-09]|gpu04\n"
    (tmp_path / "accounting").write_text(rows)
    assert nodes_of(tmp_path) == ["gpu04"]


def test_steps_that_fail_after_the_time_limit_are_no_suspects(tmp_path: Path) -> None:
    (tmp_path / "accounting").write_text(TIMED_OUT)
    window = rca.read_window(tmp_path)
    assert window.events.column("code").to_pylist() == ["TIME LIMIT"]
    assert rca.diagnose(window).stragglers == []


def test_the_first_pod_that_ended_is_named_by_its_node(tmp_path: Path) -> None:
    (tmp_path / "events.json").write_text(kubectl(EVENTS))
    assert nodes_of(tmp_path) == ["gpu-7"]


def test_accounting_and_events_add_to_a_log(tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT)
    (tmp_path / "events.json").write_text(kubectl(EVENTS))
    (tmp_path / "job.log").write_text(
        "2025-03-01 12:00:01 Worker rank=3 [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried\n"
    )
    window = rca.read_window(tmp_path)
    assert window.events.num_rows == 4
    assert "events of sacct.txt are added: 1" in window.notes
    assert [each.ranks for each in rca.diagnose(window).stragglers] == [[3]]


@for_each(
    ("text", "message"),
    [
        ("JobID|State\n", "has no row"),
        ("JobID|State\n1|FAILED\n2|FAILED\n", "rows of 2 jobs"),
        ("JobID|State\n1|RUNNING\n", "no step of the job has ended: RUNNING"),
        ("JobID  State\n1  FAILED\n", "cannot be told apart"),
        (kubectl(EVENTS)[:-40], "no complete JSON"),
        (kubectl(EVENTS[:2]), "none of 2 events"),
    ],
    ["empty", "two jobs", "running", "no columns", "cut", "no end"],
)
def test_unusable_files_of_schedulers_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        rca.read_window(tmp_path)


RETRIED = """JobID|State|ExitCode|End|NodeList|FailedNode
12|{state}|2025-05-06T14:00:00|n[1-4]|
12.0|FAILED|1:0|2025-05-06T10:00:00|n3|
12.1|{state}|2025-05-06T13:59:00|n2|
"""


def test_a_step_that_failed_hours_before_the_job_is_no_suspect(tmp_path: Path) -> None:
    (tmp_path / "accounting").write_text(RETRIED.format(state="FAILED|0:9"))
    assert nodes_of(tmp_path) == ["n2"]


def test_a_job_that_completed_has_no_failed_step(tmp_path: Path) -> None:
    (tmp_path / "accounting").write_text(RETRIED.format(state="COMPLETED|0:0"))
    assert rca.diagnose(rca.read_window(tmp_path)).failure_mode == "healthy"


def test_the_accounting_is_read_as_json(tmp_path: Path) -> None:
    def number(value: int) -> dict[str, Any]:
        return {"set": True, "infinite": False, "number": value}

    def row(state: str, signal: int, nodes: object, end: int) -> dict[str, Any]:
        code = {"status": ["SIGNALED"], "return_code": number(0), "signal": {"id": number(signal)}}
        return {"state": state, "exit_code": code, "nodes": nodes, "time": {"end": end}}

    step = {**row("FAILED", 9, {"range": "gpu02"}, 1_740_830_402), "step": {"id": "4312.0"}}
    job = {**row("FAILED", 0, "gpu[01-02]", 1_740_830_405), "job_id": 4312, "steps": [step]}
    job |= {"state": {"current": ["FAILED"]}, "association": {}, "derived_exit_code": {}}
    (tmp_path / "accounting.json").write_text(json.dumps({"jobs": [job]}, indent=1))
    window = rca.read_window(tmp_path)
    assert [(row["node"], row["code"]) for row in window.events.to_pylist()] == [("gpu02", "-9")]
    assert nodes_of(tmp_path) == ["gpu02"]


def pod(name: str, node: str, **state: Any) -> dict[str, Any]:
    status = {"phase": "Running", "containerStatuses": [{"name": "main", **state}]}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": node}, "status": status}


def test_the_node_of_a_pod_whose_container_was_killed_is_named(tmp_path: Path) -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2025-03-01T12:00:05Z"}
    well = {"exitCode": 0, "reason": "Completed", "finishedAt": "2025-03-01T12:01:05Z"}
    pods = [
        pod("llm-worker-0", "gke-a", state={"running": {}}, lastState={"terminated": well}),
        pod("llm-worker-1", "gke-b", state={"running": {}}, lastState={"terminated": ended}),
    ]
    (tmp_path / "pods.json").write_text(kubectl(pods))
    assert nodes_of(tmp_path) == ["gke-b"]
    rows = rca.read_window(tmp_path).events.to_pylist()
    assert [(row["code"], row["time"]) for row in rows] == [("OOMKilled", 1_740_830_405.0)]


def test_pods_beside_the_job_are_no_suspects(tmp_path: Path) -> None:
    beside = event("tensorboard-7f9", "BackOff", "Back-off restarting failed container tb", 5)
    (tmp_path / "events.json").write_text(kubectl([beside, *EVENTS]))
    assert nodes_of(tmp_path) == ["gpu-7"]
