"""Windows from a real Prometheus: jobs in Kubernetes, one name twice, exporters that are scraped live."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import rca
from rca.sources.prometheus.label_map import LabelMap
from tests.telemetry.prometheus_servers import (
    END,
    INTERVAL,
    MISSING,
    dcgm_samples,
    free_port,
    node_label_samples,
    node_samples,
    pod_samples,
    prometheus,
)
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}"),
    pytest.mark.system,
    pytest.mark.smoke,
]
TIMES = [END - 900 + INTERVAL * number for number in range(60)]
NODE_EXPORTER = "prometheus-node-exporter"
#: A label of a Kubernetes node, as kube-state-metrics writes it.
LEAF_LABEL = "label_network_topology_nvidia_com_leaf"
#: Node of a GPU -> labels of the pod that uses it.
PODS = {
    **{node: ("llama", "ml", f"llama-worker-{3 - node}") for node in range(4)},
    4: ("solo", "dev", "solo-1-x7k2p"),
    5: ("solo", "dev", "solo-0-abcde"),
    6: ("twin", "red", "twin-worker-0"),
    7: ("twin", "blue", "twin-worker-0"),
}


def pod_labels(node: int, gpu: int) -> str:
    _, namespace, pod = PODS[node]
    exporter = f',job="dcgm",pod="dcgm-exporter-{node}",namespace="gpu"'
    exporter += f',pci_bus_id="{node:08d}:{gpu:02d}:00.0"'
    return f'{exporter},exported_pod="{pod}",exported_namespace="{namespace}"'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three jobs in Kubernetes on eight nodes; GPU 10 (node-1) is slow."""
    lines = chain(
        dcgm_samples(8, TIMES, slow=10, label=pod_labels),
        node_samples(8, TIMES),
        pod_samples(
            [(job, namespace, pod, node) for node, (job, namespace, pod) in PODS.items() if job != "solo"],
            TIMES,
        ),
        node_label_samples([f"leaf-{node // 2}" for node in range(8)], LEAF_LABEL, TIMES),
    )
    with prometheus(tmp_path_factory.mktemp("prometheus"), lines) as url:
        yield url


def read(url: str, job: str, **options: Any) -> rca.Window:
    return rca.read_prometheus(url, job, since=600, end=END, **options)


def test_ranks_follow_the_pods_of_a_kubeflow_job(cluster: str) -> None:
    window = read(cluster, "llama")
    assert window.job.world_size == 32
    places = {place.rank: (place.node, place.gpu) for place in window.job.ranks or ()}
    # Worker 0 runs on node-3.
    assert places == {8 * pod + gpu: (f"node-{3 - pod}", gpu) for pod in range(4) for gpu in range(8)}
    assert any("pod labels of Kubeflow training operator" in note for note in window.notes)
    (straggler,) = rca.diagnose(window).stragglers
    assert (straggler.ranks, straggler.nodes) == ([18], ["node-1"])


def test_labels_of_nodes_and_devices_name_the_hardware_of_ranks(cluster: str) -> None:
    places = read(cluster, "llama").job.ranks or ()
    assert [place.leaf_switch for place in places] == ["leaf-1"] * 16 + ["leaf-0"] * 16
    # Worker 0 runs on node-3.
    assert places[5].pci_address == "0003:05:00.0"


def test_samples_are_those_that_were_scraped(cluster: str) -> None:
    metrics = read(cluster, "llama").metrics
    clock = metrics.filter(
        pc.and_(pc.equal(metrics["name"], "DCGM_FI_DEV_SM_CLOCK"), pc.equal(metrics["rank"], 0))
    )
    assert clock["time"].to_pylist() == [at for at in TIMES if END - 600 <= at < END]
    assert clock["device"].unique().to_pylist() == ["0"]
    assert set(clock["value"].to_pylist()) == {1980.0, 1975.0, 1970.0}


def test_cpu_times_are_summed_over_cores_and_belong_to_their_node(cluster: str) -> None:
    metrics = read(cluster, "llama").metrics
    cpu = metrics.filter(pc.equal(metrics["name"], "node_cpu_seconds_total"))
    assert set(cpu["device"].unique().to_pylist()) == {"idle", "user"}
    assert sorted(cpu["node"].unique().to_pylist()) == [f"node-{node}" for node in range(4)]
    user = cpu.filter(pc.and_(pc.equal(cpu["device"], "user"), pc.equal(cpu["node"], "node-2"))).sort_by(
        "time"
    )
    # Two cores at 60 %.
    spent = np.ptp(user["value"].to_numpy())
    assert spent / np.ptp(user["time"].to_numpy()) == pytest.approx(1.2, rel=0.05)


def test_pods_without_labels_are_found_by_their_names(cluster: str) -> None:
    window = read(cluster, "solo")
    assert [place.node for place in window.job.ranks or ()] == ["node-5"] * 8 + ["node-4"] * 8
    assert any("--metric-labels-allowlist" in note for note in window.notes)


def test_machines_that_are_alike_are_not_suspected(cluster: str) -> None:
    diagnosis = rca.diagnose(read(cluster, "solo"))
    assert (diagnosis.stragglers, diagnosis.causes) == ([], [])
    # What the exporters leave out is in the answer.
    assert "DCGM_FI_DEV_PCIE_LINK_WIDTH" in " ".join(diagnosis.quality.notes)


def test_two_jobs_of_one_name_are_listed_and_one_can_be_chosen(cluster: str) -> None:
    with pytest.raises(
        rca.InvalidInput, match=r"2 jobs are called twin, in the namespaces blue \(1 pods\), red"
    ) as refused:
        read(cluster, "twin")
    assert "--namespace blue" in str(refused.value.hint)
    window = read(cluster, "twin", namespace="red")
    assert {place.node for place in window.job.ranks or ()} == {"node-6"}
    with pytest.raises(rca.InvalidInput, match="in the namespace green"):
        read(cluster, "twin", namespace="green")


def test_an_unknown_job_lists_those_of_kubernetes(cluster: str) -> None:
    with pytest.raises(rca.InvalidInput) as refused:
        read(cluster, "lama")
    assert "Kubeflow training operator: llama, twin; names of pods: solo" in str(refused.value.hint)


def test_a_map_chooses_nodes_and_their_order(cluster: str) -> None:
    window = read(cluster, "any name", labels=LabelMap(nodes=("node-6", "node-0")))
    assert [place.node for place in window.job.ranks or ()] == ["node-6"] * 8 + ["node-0"] * 8


def test_a_matcher_narrows_every_series(cluster: str) -> None:
    window = read(cluster, "dcgm", matchers=['instance=~"node-[01]:.*"'])
    assert window.job.world_size == 16
    assert any("no node exporter reports on 2 of 2 nodes" in note for note in window.notes)


def test_a_limit_of_the_server_is_met_by_shorter_queries(tmp_path: Path) -> None:
    with prometheus(
        tmp_path, dcgm_samples(1, TIMES, label=lambda *_: ',job="dcgm"'), "", "--query.max-samples=1500"
    ) as url:
        window = read(url, "dcgm")
    assert window.metrics.num_rows == 8 * 6 * 40


def test_the_configuration_of_the_guide_is_valid(tmp_path: Path) -> None:
    guide = Path("docs/how-to/on-call.md").read_text(encoding="utf-8")
    shutil.copy("api/deploy/prometheus/gpu-alerts.yaml", tmp_path)
    (tmp_path / "prometheus.yml").write_text(guide.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    checked = ["promtool", "check", "config", "prometheus.yml"]
    assert subprocess.run(checked, cwd=tmp_path, capture_output=True, check=False).returncode == 0


class Exporter(BaseHTTPRequestHandler):
    """One page for each of eight nodes of eight GPUs; GPU 37 has 60 % of the clock of the others."""

    def do_GET(self) -> None:
        node = int(urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["node"][0])
        lines = []
        for gpu in range(8):
            slow = (node, gpu) == (4, 5)
            labels = f'gpu="{gpu}",UUID="GPU-{node}-{gpu}",Hostname="gpu-{node}",hpc_job="4711"'
            lines += [
                f"DCGM_FI_DEV_SM_CLOCK{{{labels}}} {1188 if slow else 1980}",
                f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {98 + gpu % 2}",
                f"DCGM_FI_DEV_FB_USED{{{labels}}} 71000",
            ]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write("\n".join([*lines, ""]).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(shutil.which(NODE_EXPORTER) is None, reason=f"not installed: {NODE_EXPORTER}")
def test_an_exporter_that_is_down_is_a_fact_about_telemetry(tmp_path: Path) -> None:
    labels = ',job="training"'
    lines = (
        line
        for line in dcgm_samples(2, TIMES, label=lambda *_: labels)
        if "node-1" not in line or float(line.rsplit(" ", 1)[1]) < TIMES[30]
    )
    up = (
        f'up{{instance="node-{node}:9400",job="training"}} {int(node == 0 or number < 30)} {at:.3f}'
        for node in (0, 1)
        for number, at in enumerate(TIMES)
    )
    with prometheus(tmp_path, chain(lines, ["# TYPE up gauge"], up)) as url:
        diagnosis = rca.diagnose(rca.read_prometheus(url, "training", since=900, end=END))
    assert (diagnosis.verdict, diagnosis.stragglers, diagnosis.actions) == ("undecided", [], [])
    assert any(
        "1 of 2 exporters of the job are down (up is 0): node-1:9400" in each
        for each in diagnosis.quality.notes
    )
    assert "node-1" in diagnosis.next_check


def test_exporters_that_are_scraped_live_name_the_slow_gpu(tmp_path: Path) -> None:
    pages = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=pages.serve_forever, args=(0.02,), daemon=True).start()
    node_exporter = f"127.0.0.1:{free_port()}"
    machine = subprocess.Popen(
        [NODE_EXPORTER, f"--web.listen-address={node_exporter}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    dcgm = [
        {
            "targets": [f"127.0.0.1:{pages.server_port}"],
            "labels": {"__param_node": str(node), "instance": f"gpu-{node}:9400"},
        }
        for node in range(8)
    ]
    # The real machine stands for one of the nodes.
    node = [{"targets": [node_exporter], "labels": {"instance": "gpu-4:9100"}}]
    config = {
        "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"},
        "scrape_configs": [
            {"job_name": "dcgm", "static_configs": dcgm},
            {"job_name": "node", "static_configs": node},
        ],
    }
    try:
        # JSON is YAML.
        with prometheus(tmp_path, config=json.dumps(config)) as url:
            enough = lambda: scrapes(url, "DCGM_FI_DEV_SM_CLOCK") >= 12 and scrapes(url, "node_load1") >= 8  # noqa: E731
            until(enough, not_yet=OSError)
            window = rca.read_prometheus(url, "4711", since=20)
    finally:
        for process in (machine,):
            process.terminate()
            process.wait(10)
        pages.shutdown()
        pages.server_close()
    diagnosis = rca.diagnose(window)
    assert (diagnosis.causes[0].cause, diagnosis.causes[0].ranks) == ("gpu_throttling", [37])
    names = set(window.metrics["name"].unique().to_pylist())
    assert {"node_load1", "node_cpu_seconds_total", "node_memory_MemAvailable_bytes"} <= names
    assert any("no node exporter reports on 7 of 8 nodes" in note for note in window.notes)
    assert window.job.end <= time.time()


def scrapes(url: str, name: str) -> int:
    """Samples of the series that has fewest."""
    asked = urllib.parse.urlencode({"query": f"min(count_over_time({name}[1m]))"})
    with urllib.request.urlopen(f"{url}/api/v1/query?{asked}", timeout=5) as answer:
        result = json.load(answer)["data"]["result"]
    return int(float(result[0]["value"][1])) if result else 0


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Eight machines with node exporters and no GPU exporter; half of them run the pods of a job."""
    pods = [("etl", "ml", f"etl-worker-{3 - node}", node) for node in range(4)]
    lines = chain(node_samples(8, TIMES), pod_samples(pods, TIMES))
    with prometheus(tmp_path_factory.mktemp("machines"), lines) as url:
        yield url


def test_machines_without_gpu_exporters_have_a_rank_each(machines: str) -> None:
    window = read(machines, "node")
    places = {place.rank: place.node for place in window.job.ranks or ()}
    assert places == {rank: f"node-{rank}.hpc.example" for rank in range(8)}
    assert {row["name"] for row in window.metrics.to_pylist()} >= {"node_load1", "node_cpu_seconds_total"}
    assert any("no GPU exporter reports" in note for note in window.notes)
    assert rca.diagnose(window).abstention_reason is not None


def test_machines_follow_the_pods_of_a_job_or_the_map(machines: str) -> None:
    window = read(machines, "etl")
    # Worker 0 runs on node-3.
    assert {place.rank: place.node for place in window.job.ranks or ()} == {
        rank: f"node-{3 - rank}" for rank in range(4)
    }
    assert window.metrics.num_rows
    listed = read(machines, "any", labels=LabelMap(ranks={"node-6": (1,), "node-2": (0,)}))
    assert {place.rank: place.node for place in listed.job.ranks or ()} == {0: "node-2", 1: "node-6"}


def test_a_job_without_machines_lists_those_that_report(machines: str) -> None:
    with pytest.raises(rca.InvalidInput, match="no machine reports for the job llama") as refused:
        read(machines, "llama")
    assert "job of the scrape: node" in str(refused.value.hint)
