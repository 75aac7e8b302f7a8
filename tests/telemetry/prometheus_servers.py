"""Servers of Prometheus for tests: real ones over made samples, and a stub."""

from __future__ import annotations

import json
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tests.waiting import until

#: Why a test with a real server is skipped, or empty.
MISSING = ", ".join(name for name in ("prometheus", "promtool") if shutil.which(name) is None)
#: The hour of the made samples ends here, Unix seconds.
END = 1_700_003_600.0
INTERVAL = 15.0


def dcgm_samples(
    n_nodes: int,
    times: Sequence[float],
    slow: int | None = None,
    label: Callable[[int, int], str] | None = None,
    names: Sequence[str] = (),
) -> Iterator[str]:
    """OpenMetrics lines of eight GPUs on each node.

    Parameters
    ----------
    slow : int, optional
        Number of a GPU with 60 % of the clock of the others.
    label : callable, optional
        Further labels of a node's GPU.
    names : sequence of str, optional
        Of further gauges.
    """
    gauges: dict[str, Callable[[int, int], float]] = {
        "DCGM_FI_DEV_SM_CLOCK": lambda gpu, at: (1186 if gpu == slow else 1980) - (gpu * 7 + at) % 3 * 5,
        "DCGM_FI_DEV_GPU_UTIL": lambda gpu, at: 97 - (gpu + at) % 3,
        "DCGM_FI_DEV_POWER_USAGE": lambda gpu, at: (420 if gpu == slow else 640) + (gpu * 3 + at) % 7,
        "DCGM_FI_DEV_GPU_TEMP": lambda gpu, at: 62 + (gpu + at) % 4,
        "DCGM_FI_DEV_FB_USED": lambda gpu, at: 71_000 + gpu % 5,
        "DCGM_FI_DEV_XID_ERRORS": lambda gpu, at: 0,
        **dict.fromkeys(names, lambda gpu, at: (gpu * 5 + at) % 11),
    }
    for name, value in gauges.items():
        yield f"# TYPE {name} gauge"
        for gpu in range(8 * n_nodes):
            node, local = divmod(gpu, 8)
            labels = (
                f'gpu="{local}",UUID="GPU-{gpu:04d}",device="nvidia{local}",modelName="NVIDIA H100",'
                f'Hostname="node-{node}",instance="node-{node}:9400"{label(node, local) if label else ""}'
            )
            for number, at in enumerate(times):
                yield f"{name}{{{labels}}} {value(gpu, number)} {at:.3f}"


def node_samples(n_nodes: int, times: Sequence[float]) -> Iterator[str]:
    """OpenMetrics lines of a node exporter on each node, called by address."""
    yield "# TYPE node_load1 gauge"
    for node in range(n_nodes):
        for number, at in enumerate(times):
            load = 12 + (node + number) % 3
            yield f'node_load1{{instance="10.0.0.{node}:9100",job="node"}} {load} {at:.3f}'
    yield "# TYPE node_uname_info gauge"
    for node in range(n_nodes):
        labels = f'instance="10.0.0.{node}:9100",job="node",nodename="node-{node}.hpc.example"'
        for at in times:
            yield f"node_uname_info{{{labels}}} 1 {at:.3f}"
    yield "# TYPE node_cpu_seconds counter"
    for node in range(n_nodes):
        for cpu in range(2):
            for mode, rate in (("idle", 0.4), ("user", 0.6)):
                for at in times:
                    labels = f'instance="10.0.0.{node}:9100",job="node",cpu="{cpu}",mode="{mode}"'
                    yield f"node_cpu_seconds_total{{{labels}}} {rate * (at - times[0]) + 1000:.2f} {at:.3f}"


def pod_samples(pods: Sequence[tuple[str, str, str, int]], times: Sequence[float]) -> Iterator[str]:
    """What kube-state-metrics says about the pods of Kubeflow jobs: job, namespace, name and node of each."""
    yield "# TYPE kube_pod_labels gauge"
    prefix = "label_training_kubeflow_org"
    for job, namespace, pod, _ in pods:
        _, kind, index = pod.rsplit("-", 2)
        labels = (
            f'namespace="{namespace}",pod="{pod}",instance="ksm:8080",{prefix}_job_name="{job}",'
            f'{prefix}_replica_type="{kind}",{prefix}_replica_index="{index}"'
        )
        for at in times:
            yield f"kube_pod_labels{{{labels}}} 1 {at:.3f}"
    yield "# TYPE kube_pod_info gauge"
    for _, namespace, pod, node in pods:
        for at in times:
            yield f'kube_pod_info{{namespace="{namespace}",pod="{pod}",node="node-{node}"}} 1 {at:.3f}'


def node_label_samples(leaves: Sequence[str], label: str, times: Sequence[float]) -> Iterator[str]:
    """What kube-state-metrics says about the labels of nodes: a label with the leaf switch of each."""
    yield "# TYPE kube_node_labels gauge"
    for node, leaf in enumerate(leaves):
        for at in times:
            yield f'kube_node_labels{{node="node-{node}",instance="ksm:8080",{label}="{leaf}"}} 1 {at:.3f}'


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextmanager
def prometheus(
    folder: Path, lines: Iterator[str] | None = None, config: str = "", *options: str
) -> Iterator[str]:
    """A Prometheus over made samples; yields its address."""
    folder.mkdir(parents=True, exist_ok=True)
    if lines is not None:
        with (folder / "samples.txt").open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.write("# EOF\n")
        making = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "data"]
        subprocess.run(making, cwd=folder, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text(config or "scrape_configs: []\n", encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [
            "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
            "--storage.tsdb.retention.time=100y", f"--web.listen-address={address}", "--log.level=error",
            *options,
        ],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ready = f"http://{address}/-/ready"
        until(lambda: urllib.request.urlopen(ready, timeout=1).status == 200, not_yet=OSError)
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(10)


Answer = tuple[int, str, bytes]
Handle = Callable[[str, dict[str, list[str]], dict[str, str]], Answer]


def success(data: Any, **more: Any) -> Answer:
    return 200, "application/json", json.dumps({"status": "success", "data": data, **more}).encode()


def failure(status: int, kind: str, text: str) -> Answer:
    return (
        status,
        "application/json",
        json.dumps({"status": "error", "errorType": kind, "error": text}).encode(),
    )


@contextmanager
def stub(handle: Handle, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server whose answers a function decides: ``handle(path, parameters, headers)``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def do_GET(self) -> None:
            self.answer("")

        def answer(self, body: str) -> None:
            path, _, query = self.path.partition("?")
            parameters: dict[str, list[str]] = {}
            for name, value in parse_qsl(body or query):
                parameters.setdefault(name, []).append(value)
            status, kind, content = handle(path, parameters, dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(BrokenPipeError):
                # A client may have left before.
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def talking(talk: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that reads each request, and whose bytes a function sends: ``talk(connection)``."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(1 << 16)
                talk(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def dripping(content: bytes, head: bytes = b"", every: float = 0.05) -> Callable[[socket.socket], None]:
    """Send a head at once, then a byte of the content every so many seconds."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(head)
        for byte in content:
            connection.sendall(bytes([byte]))
            time.sleep(every)

    return talk
