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
