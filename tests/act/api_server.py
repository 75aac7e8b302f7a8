"""A small API server of Kubernetes for the real kubectl: nodes, pods, evictions, and a note of each write."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SELECTOR = "jobset.sigs.k8s.io/jobset-name=llama"
CONFIGURATION = """
apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
current-context: test
users: [{{name: test, user: {{}}}}]
"""
_VERBS = ["get", "list", "patch"]
_RESOURCES = [
    {"name": "nodes", "singularName": "node", "namespaced": False, "kind": "Node", "verbs": _VERBS},
    {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": _VERBS},
]


class ApiServer:
    """Two nodes of a job, one of another; `writes` has what changed something."""

    def __init__(self) -> None:
        self.nodes = {name: self._node(name) for name in ("node-1", "node-2", "db-1")}
        self.pods = [self._pod(f"llama-{rank}", f"node-{1 + rank // 2}") for rank in range(4)]
        self.pods.append(self._pod("db", "db-1", {"app": "db"}))
        self.writes: list[str] = []

    def _node(self, name: str) -> dict[str, Any]:
        meta = {"name": name, "resourceVersion": "1", "labels": {"kubernetes.io/os": "linux"}}
        return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}}

    def _pod(self, name: str, node: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
        of_job = dict([SELECTOR.split("=")])
        meta = {"name": name, "namespace": "train", "uid": f"uid-{name}", "labels": labels or of_job}
        spec, status = {"nodeName": node}, {"phase": "Running"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}

    def get(self, path: str, query: dict[str, list[str]]) -> dict[str, Any] | None:
        fixed: dict[str, dict[str, Any]] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": _RESOURCES},
            "/api/v1/nodes": {"kind": "NodeList", "apiVersion": "v1", "items": list(self.nodes.values())},
        }
        if path == "/api/v1/namespaces/train/pods":
            found = [pod for pod in self.pods if self._matches(pod, query)]
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": found}
        return fixed.get(path) or self.nodes.get(path.removeprefix("/api/v1/nodes/"))

    def _matches(self, pod: dict[str, Any], query: dict[str, list[str]]) -> bool:
        label, _, value = query.get("labelSelector", [""])[0].partition("=")
        name = query.get("fieldSelector", [""])[0].removeprefix("metadata.name=")
        meta = pod["metadata"]
        return (not label or meta["labels"].get(label) == value) and (not name or meta["name"] == name)

    def patch(self, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> dict[str, Any] | None:
        node = self.nodes.get(path.removeprefix("/api/v1/nodes/"))
        if node is not None and "dryRun" not in query:
            node["spec"] |= body.get("spec") or {}
            notes = body.get("metadata", {}).get("annotations", {})
            self.writes.append(f"patch {node['metadata']['name']} {json.dumps(body.get('spec') or notes)}")
        return node

    def evict(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        name = path.split("/")[-2]
        [pod] = [each for each in self.pods if each["metadata"]["name"] == name]
        options = body["deleteOptions"]
        assert (body["apiVersion"], body["kind"]) == ("policy/v1", "Eviction")
        assert options["preconditions"]["uid"] == pod["metadata"]["uid"]
        if options.get("dryRun") != ["All"]:
            self.pods.remove(pod)
            self.writes.append(f"evict {name}")
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[ApiServer, Path]]:
    """Serve until the block ends; gives the server and the configuration of kubectl."""
    held = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, found: dict[str, Any] | None) -> None:
            missing = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "NotFound",
                "code": 404,
            }
            content = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _body(self) -> Any:
            if length := self.headers.get("Content-Length"):
                return json.loads(self.rfile.read(int(length)))
            pieces = b""
            while size := int(self.rfile.readline(), 16):
                pieces += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return json.loads(pieces)

        def do_GET(self) -> None:
            at = urlsplit(self.path)
            self._answer(held.get(at.path, parse_qs(at.query)))

        def do_PATCH(self) -> None:
            at = urlsplit(self.path)
            self._answer(held.patch(at.path, parse_qs(at.query), self._body()))

        def do_POST(self) -> None:
            self._answer(held.evict(urlsplit(self.path).path, self._body()))

        def log_message(self, *_: Any) -> None:
            """Stay quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    configuration = folder / "kubeconfig"
    configuration.write_text(CONFIGURATION.format(port=server.server_address[1]))
    try:
        yield held, configuration
    finally:
        server.shutdown()
        server.server_close()
