"""A cluster that answers kubectl and scontrol as real ones do, in memory, and a service with an incident."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from rca.act import kubernetes, slurm
from rca.act.tools import ToolError
from rca.errors import SourceError

BUDGET = (
    "Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's disruption budget."
)


class PlayedCluster:
    """Nodes, pods and one Slurm job; `done` has what changed them."""

    def __init__(self) -> None:
        self.cordoned: dict[str, bool] = {"node-1": False, "node-2": False}
        self.pods = {
            f"llama-{rank}": {"uid": f"uid-{rank}", "node": f"node-{1 + rank // 2}"} for rank in range(4)
        }
        self.states = {"node-1": "IDLE*", "node-2": "MIXED"}
        self.reasons: dict[str, str] = {}
        self.restarts = 0
        self.requeue = 1
        self.protected = False
        self.done: list[str] = []

    def output(self, command: Sequence[str], content: str | None = None) -> str:
        words = list(command)
        return self._kubectl(words[1:], content) if words[0] == "kubectl" else self._scontrol(words[1:])

    def _kubectl(self, words: list[str], content: str | None) -> str:
        if words[0] == "get" and words[1] == "node":
            if words[2] not in self.cordoned:
                raise ToolError(f'Error from server (NotFound): nodes "{words[2]}" not found')
            spec = {"unschedulable": True} if self.cordoned[words[2]] else {}
            return json.dumps({"metadata": {"name": words[2]}, "spec": spec})
        if words[0] == "get":
            return json.dumps({"items": [self._pod(name) for name in self.pods if self._wanted(name, words)]})
        if words[0] == "cordon":
            if "--dry-run=server" not in words:
                self.cordoned[words[1]] = True
                self.done.append(f"cordon {words[1]}")
            return f"node/{words[1]} cordoned\n"
        if words[0] == "annotate":
            return f"node/{words[2]} annotated\n"
        assert words[:2] == ["create", "--raw"]
        return self._evict(words[2], json.loads(content or ""))

    def _wanted(self, name: str, words: list[str]) -> bool:
        field = words[words.index("--field-selector") + 1] if "--field-selector" in words else ""
        return not field or field == f"metadata.name={name}"

    def _pod(self, name: str) -> dict[str, Any]:
        pod = self.pods[name]
        meta = {"name": name, "uid": pod["uid"]}
        return {"metadata": meta, "spec": {"nodeName": pod["node"]}, "status": {"phase": "Running"}}

    def _evict(self, path: str, body: dict[str, Any]) -> str:
        name = path.split("/")[-2]
        assert body["kind"] == "Eviction"
        if name not in self.pods:
            raise ToolError(f'Error from server (NotFound): pods "{name}" not found')
        if body["deleteOptions"]["preconditions"]["uid"] != self.pods[name]["uid"]:
            raise ToolError("Error from server (Conflict): Precondition failed: UID in precondition")
        if self.protected:
            raise ToolError(BUDGET)
        if body["deleteOptions"].get("dryRun") != ["All"]:
            self.done.append(f"evict {name} {self.pods[name]['uid']}")
            # The JobSet starts it again, elsewhere.
            self.pods[name] = {"uid": f"{self.pods[name]['uid']}-again", "node": "node-3"}
        return json.dumps({"status": "Success"})

    def _scontrol(self, words: list[str]) -> str:
        if words[0] == "--oneliner" and words[2] == "node":
            return f"NodeName={words[3]} Arch=x86_64 State={self.states[words[3]]} Reason=none"
        if words[0] == "--oneliner":
            counts = f"Requeue={self.requeue} Restarts={self.restarts}"
            return f"JobId={words[3]} JobName=llama {counts} JobState=RUNNING"
        if words[0] == "requeue":
            self.restarts += 1
            self.done.append(f"requeue {words[1]}")
            return ""
        fields = dict(word.split("=", 1) for word in words[1:])
        self.states[fields["NodeName"]] = "MIXED+DRAIN"
        self.reasons[fields["NodeName"]] = fields["Reason"]
        self.done.append(f"drain {fields['NodeName']}")
        return ""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> PlayedCluster:
    held = PlayedCluster()
    for module in (kubernetes, slurm):
        monkeypatch.setattr(module, "output", held.output)
    return held


class PlayedService:
    """A client of a service with one open incident, whose plan recommends to drain a node."""

    def __init__(self, job: str = "llama", **option: Any) -> None:
        self.incident = {
            "id": "a" * 32,
            "job_id": job,
            "state": "open",
            "suspected": False,
            "uncertain": False,
            "cause": "gpu_throttling",
            "diagnoses": [{"verdict": "sick", "diagnosis_id": "d" * 32}],
        }
        self.option = {
            "action": "drain_node", "weight": "heavy", "causes": ["gpu_throttling"], "ranks": [2, 3],
            "nodes": ["node-2"], "seconds_per_step_saved": 0.05, "interval": [0.04, 0.06],
            "basis": "attribution", "takes_out": True, "chance": 0.97, "one_off_seconds": 300.0,
            "break_even_steps": 6000, "risk": "none", "instruction": "cordon the node",
        } | option  # fmt: skip
        self.first: str = self.option["action"]
        self.reports: list[dict[str, Any]] = []
        self.away = False

    def get(self, path: str) -> bytes:
        if path.startswith("/v1/incidents?"):
            items = [self.incident] if f"job={self.incident['job_id']}" in path else []
            return json.dumps({"items": items if self.incident["state"] == "open" else []}).encode()
        return json.dumps(self.incident).encode()

    def post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/plans":
            return {
                "mode": "fail_slow", "seconds_per_step_lost": 0.05, "interval": [0.04, 0.06],
                "options": [self.option], "first": self.first, "why": "it is due", "rejected": [],
                "competitive_ratio": 2.0,
            }  # fmt: skip
        if self.away:
            raise SourceError("the service cannot be reached")
        if document["key"] not in {each["key"] for each in self.reports}:
            self.reports.append(document)
        return {}
