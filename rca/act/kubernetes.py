"""Steps on Kubernetes, by kubectl: cordon a node, and evict the pods of a job from it.

The pods are evicted, not deleted, so disruption budgets hold. What follows is up to the job: a JobSet or an
elastic job starts them again, elsewhere if their node is cordoned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from rca.act.steps import AgentStep
from rca.act.tools import ToolError, output
from rca.errors import InvalidInput

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

    def is_done(self) -> bool:
        return bool(self._read().get("spec", {}).get("unschedulable"))

    def check(self) -> None:
        self._read()
        output(["kubectl", "cordon", self.node, "--dry-run=server"])

    def carry_out(self) -> None:
        note = f"{ANNOTATION}={self.incident}"
        output(["kubectl", "annotate", "node", self.node, note, "--overwrite"])
        output(["kubectl", "cordon", self.node])

    def _read(self) -> dict[str, Any]:
        return _document(["kubectl", "get", "node", self.node, "-o", "json"])


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
        held = _document([*command, "--field-selector", f"metadata.name={self.pod}"]).get("items", [])
        same = [each["metadata"] for each in held if each["metadata"].get("uid") == self.uid]
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
    nodes: Iterable[str], namespace: str, selector: str, incident: str, *, cordon: bool
) -> list[AgentStep]:
    """The steps that take the pods of a job off some nodes.

    Parameters
    ----------
    selector : str
        Labels of the job's pods, such as ``jobset.sigs.k8s.io/jobset-name=llama``.
    cordon : bool
        Also keep new pods off these nodes.

    Raises
    ------
    InvalidInput
        If no pod of the job runs on them.
    ToolError
    """
    wanted = set(nodes)
    command = ["kubectl", "get", "pods", "-n", namespace, "-l", selector, "-o", "json"]
    pods = [each for each in _document(command).get("items", []) if _runs_on(each, wanted)]
    if not pods:
        raise InvalidInput(
            f"no pod with {selector} runs on {', '.join(sorted(wanted)) or 'a known node'}",
            hint="check the namespace and the selector of the job in the policy",
        )
    cordons = [CordonNode(node=node, incident=incident) for node in sorted(wanted)] if cordon else []
    evictions = [
        EvictPod(namespace=namespace, pod=each["metadata"]["name"], uid=each["metadata"]["uid"])
        for each in sorted(pods, key=lambda each: str(each["metadata"]["name"]))
    ]
    return [*cordons, *evictions]


def _runs_on(pod: dict[str, Any], nodes: set[str]) -> bool:
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    leaves = "deletionTimestamp" in pod["metadata"]
    return pod.get("spec", {}).get("nodeName") in nodes and not ended and not leaves


def _document(command: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(output(command))
    except ValueError:
        raise ToolError("kubectl answers no JSON") from None
    return found if isinstance(found, dict) else {}
