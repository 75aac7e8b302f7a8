"""A cluster that answers kubectl and scontrol as real ones do, in memory, and a service with an incident."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rca.act import kubernetes, slurm
from rca.act.tools import ToolError
from rca.client import ServiceError
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
        self.job_state = "RUNNING"
        #: `scontrol update` says yes and does nothing.
        self.deaf = False
        self.reasons: dict[str, str] = {}
        self.restarts = 0
        self.requeue = 1
        self.protected = False
        self.done: list[str] = []

    def output(self, command: Sequence[str], content: str | None = None) -> str:
        words = list(command)
        if words[0] == "kubectl":
            return self._kubectl(words[1:], content)
        return self._squeue(words[1:]) if words[0] == "squeue" else self._scontrol(words[1:])

    def _kubectl(self, words: list[str], content: str | None) -> str:
        if words[0] == "get" and words[1] == "node":
            if words[2] not in self.cordoned:
                raise ToolError(f'Error from server (NotFound): nodes "{words[2]}" not found')
            spec = {"unschedulable": True} if self.cordoned[words[2]] else {}
            return json.dumps({"metadata": {"name": words[2]}, "spec": spec})
        if words[0] == "get":
            assert "-l" not in words or words[words.index("-l") + 1].endswith("=llama")
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

    def _squeue(self, words: list[str]) -> str:
        assert "--jobs=4711" in words
        return f"{self.job_state}|{self.restarts}|node-[1-2]|\n"

    def _scontrol(self, words: list[str]) -> str:
        if words[:2] == ["show", "hostnames"]:
            assert words[2] == "node-[1-2]"
            return "node-1\nnode-2\n"
        if words[:2] == ["show", "node"]:
            return f"NodeName={words[2]} Arch=x86_64\n   State={self.states[words[2]]} Weight=1\n"
        if words[:2] == ["show", "job"]:
            return (
                f"JobId={words[2]} JobName=x Requeue=7\n   Requeue={self.requeue} Restarts={self.restarts}\n"
            )
        if words[0] == "requeue":
            self.restarts += 1
            self.done.append(f"requeue {words[1]}")
            return ""
        fields = dict(word.split("=", 1) for word in words[1:])
        if not self.deaf:
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
        self.incident: dict[str, Any] = {
            "id": "a" * 32,
            "job_id": job,
            "state": "open",
            "suspected": False,
            "uncertain": False,
            "cause": "gpu_throttling",
            "acknowledged_at": None,
            "assigned_to": None,
            "actions": [],
            "diagnoses": [window("sick")],
            "of a newer release": 1,
        }
        self.option = {
            "action": "drain_node", "weight": "heavy", "causes": ["gpu_throttling"], "ranks": [2, 3],
            "nodes": ["node-2"], "seconds_per_step_saved": 0.05, "interval": [0.04, 0.06],
            "basis": "attribution", "takes_out": True, "chance": 0.97, "one_off_seconds": 300.0,
            "break_even_steps": 6000, "risk": "none", "instruction": "cordon the node",
            "of a newer release": 1,
        } | option  # fmt: skip
        self.first: str = self.option["action"]
        self.ended_at: str | None = None
        self.away = False
        #: Whether lists of incidents ignore the job that is asked for.
        self.list_everything = False
        #: Its clock, Unix seconds.
        self.answered_at = 1.8e9
        #: Actions on other incidents: as recorded, and the job.
        self.others: list[tuple[dict[str, Any], str]] = []

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The actions that were recorded on the incident."""
        found: list[dict[str, Any]] = self.incident["actions"]
        return found

    def get(self, path: str) -> bytes:
        if path.startswith("/v1/incidents?"):
            asked = self.list_everything or f"job={self.incident['job_id']}" in path
            items = [self.incident] if asked else []
            return json.dumps({"items": items if self.incident["state"] == "open" else []}).encode()
        if path.startswith("/v1/actions?"):
            return json.dumps({"items": self._recorded(path)}).encode()
        return json.dumps(self.incident).encode()

    def _recorded(self, path: str) -> list[dict[str, Any]]:
        asked = parse_qs(urlsplit(path).query)
        since, jobs = datetime.fromisoformat(asked["since"][0]), asked.get("job")
        held = [(each, self.incident["job_id"]) for each in self.reports] + self.others
        found = [each for each, job in held if jobs is None or job in jobs]
        return [
            each
            for each in found
            if [each["key"]] == asked["key"] and datetime.fromisoformat(each["recorded_at"]) >= since
        ]

    def telemetry(self, job: str) -> dict[str, Any]:
        assert job == self.incident["job_id"]
        return {"ended_at": self.ended_at}

    def post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/plans":
            return {"mode": "fail_slow", "options": [self.option], "first": self.first}
        if self.away:
            raise SourceError("the service cannot be reached")
        document = {name: value for name, value in document.items() if name != "budget"}
        same = [each for each in self.reports if each["key"] == document["key"]]
        if same and any(same[0][name] != value for name, value in document.items()):
            raise ServiceError("the key was used for another action", code="conflict", status=409)
        if not same:
            self.reports.append(self.recorded(document))
        return {}

    def recorded(self, document: dict[str, Any]) -> dict[str, Any]:
        """An action as the service gives it."""
        at = datetime.fromtimestamp(self.answered_at, UTC).isoformat()
        return {"nodes": [], "incident_id": self.incident["id"], "recorded_at": at} | document


def window(verdict: str, end: str = "2027-01-15T07:59:00Z", diagnosis: str = "d" * 32) -> dict[str, Any]:
    """A window of the incident; the tests' clock begins at 08:00."""
    return {"verdict": verdict, "diagnosis_id": diagnosis, "window_end": end}
