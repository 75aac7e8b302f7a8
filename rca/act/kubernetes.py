"""Steps on Kubernetes, by kubectl: cordon a node, and evict the pods of a job from it.

The pods are evicted, not deleted, so disruption budgets hold. What follows is up to the job: a JobSet or an
elastic job starts them again, elsewhere if their node is cordoned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from rca.act.steps import AgentStep, nodes_of_job
from rca.act.tools import ToolError, output

#: Says which incident a node was cordoned for, so that people and other tools see why.
ANNOTATION = "straggler-rca.io/incident"


class CordonNode(AgentStep):
    """No new pod comes to a node. A node that is cordoned already is left as it is."""

    kind: Literal["kubernetes.cordon"] = "kubernetes.cordon"
    node: str
    incident: str

    @property
    def text(self) -> str:
        return f"kubectl cordon {self.node}"

    @property
    def undo(self) -> str:
        return f"kubectl uncordon {self.node}"

    def is_done(self) -> bool:
        return bool(_part(self._read(), "spec").get("unschedulable"))

    def check(self) -> None:
        self._read()
        output(["kubectl", "cordon", self.node, "--dry-run=server"])

    def carry_out(self) -> None:
        note = f"{ANNOTATION}={self.incident}"
        output(["kubectl", "annotate", "node", self.node, note, "--overwrite"])
        output(["kubectl", "cordon", self.node])

    def _read(self) -> dict[str, Any]:
        found = _document(["kubectl", "get", "node", self.node, "-o", "json"])
        if _part(found, "metadata").get("name") != self.node:
            raise ToolError(f"kubectl does not answer with the node {self.node}")
        return found


class EvictPod(AgentStep):
    """A pod leaves its node, as far as disruption budgets allow; only the pod with this UID."""

    kind: Literal["kubernetes.evict"] = "kubernetes.evict"
    namespace: str
    pod: str
    uid: str

    @property
    def text(self) -> str:
        return f"evict pod {self.pod} of namespace {self.namespace}"

    def is_done(self) -> bool:
        command = ["kubectl", "get", "pods", "-n", self.namespace, "-o", "json"]
        held = _items([*command, "--field-selector", f"metadata.name={self.pod}"])
        same = [meta for each in held if (meta := _part(each, "metadata")).get("uid") == self.uid]
        return not same or "deletionTimestamp" in same[0]

    def check(self) -> None:
        self._evict(dry_run=True)

    def carry_out(self) -> None:
        self._evict(dry_run=False)

    def _evict(self, *, dry_run: bool) -> None:
        options: dict[str, Any] = {"preconditions": {"uid": self.uid}}
        if dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": self.pod, "namespace": self.namespace},
            "deleteOptions": options,
        }
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}/eviction"
        output(["kubectl", "create", "--raw", path, "-f", "-"], json.dumps(body))


def cordon_and_evict(
    wanted: Iterable[str], namespace: str, selector: str, incident: str, *, cordon: bool
) -> tuple[list[AgentStep], int]:
    """The steps that take the pods of a job off some of its nodes, and the number of all its nodes.

    Parameters
    ----------
    selector : str
        Labels of the job's pods, such as ``jobset.sigs.k8s.io/jobset-name=llama``.
    cordon : bool
        Also keep new pods off these nodes.

    Raises
    ------
    InvalidInput
        If no pod of the job runs on one of them.
    ToolError
    """
    pods = _items(["kubectl", "get", "pods", "-n", namespace, "-l", selector, "-o", "json"])
    placed = [(_part(pod, "spec").get("nodeName"), _part(pod, "metadata")) for pod in pods if _runs(pod)]
    of_job = {node for node, _ in placed if isinstance(node, str)}
    nodes = nodes_of_job(wanted, of_job)
    cordons = [CordonNode(node=node, incident=incident) for node in nodes] if cordon else []
    leaving = [meta for node, meta in placed if node in nodes]
    evictions = [
        EvictPod(namespace=namespace, pod=str(meta.get("name")), uid=str(meta.get("uid")))
        for meta in sorted(leaving, key=lambda meta: str(meta.get("name")))
    ]
    return [*cordons, *evictions], len(of_job)


def _runs(pod: dict[str, Any]) -> bool:
    ended = _part(pod, "status").get("phase") in ("Succeeded", "Failed")
    return not ended and "deletionTimestamp" not in _part(pod, "metadata")


def _document(command: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(output(command))
    except ValueError:
        raise ToolError("kubectl answers no JSON") from None
    return found if isinstance(found, dict) else {}


def _items(command: list[str]) -> list[dict[str, Any]]:
    items = _document(command).get("items")
    return [each for each in items if isinstance(each, dict)] if isinstance(items, list) else []


def _part(document: dict[str, Any], name: str) -> dict[str, Any]:
    part = document.get(name)
    return part if isinstance(part, dict) else {}
