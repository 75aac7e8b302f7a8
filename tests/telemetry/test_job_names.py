"""Names of jobs, as labels of devices, of alerts and of pods give them."""

from __future__ import annotations

from typing import Any

from rca.sources.prometheus.job_devices import JobSearch
from rca.sources.prometheus.job_names import JobName, anchors, find_jobs, job_of
from rca.sources.prometheus.label_map import LabelMap, LabelNames
from tests.for_each import for_each


@for_each(
    ("labels", "name", "namespace"),
    [
        ({"hpc_job": "4711", "Hostname": "n1"}, "4711", ""),
        ({"slurm_job_id": "12"}, "12", ""),
        ({"pod": "llama-70b-worker-1", "namespace": "ml"}, "llama-70b", "ml"),
        ({"exported_pod": "b-3-chief-0", "exported_namespace": "m", "pod": "amd-exporter-x7k2p"}, "b-3", "m"),
        ({"pod": "gpt-5-0", "namespace": "ml"}, "gpt-5", "ml"),
        ({"pod": "solo-1-x7k2p", "namespace": "dev"}, "solo", "dev"),
        ({"pod": "set-workers-0-3-abcde", "namespace": "dev"}, "set", "dev"),
        ({"pod": "p-0", "namespace": "x", "pod_label_volcano_sh_job_name": "vc"}, "vc", "x"),
        ({"label_jobset_sigs_k8s_io_jobset_name": "js", "pod": "js-w-0-1-zzzzz"}, "js", ""),
        ({"label_training_kubeflow_org_job_name": "kf"}, "kf", ""),
    ],
)  # fmt: skip
def test_labels_name_the_job(labels: dict[str, str], name: str, namespace: str) -> None:
    assert job_of(labels) == JobName(name, namespace)


def test_an_exporter_is_no_job_and_a_scrape_names_none() -> None:
    assert job_of({"pod": "dcgm-exporter-12345", "namespace": "gpu", "job": "dcgm"}) is None
    assert job_of({"pod": "web-7d9f8-x7k2p", "Hostname": "n"}) is None


def test_controllers_and_the_map_come_before_names_of_pods() -> None:
    labels = {"pod": "a-0", "namespace": "x", "team_job": "mine"}
    assert job_of(labels, pods={("x", "a-0"): JobName("real", "x")}) == JobName("real", "x")
    assert job_of(labels, LabelMap(labels=LabelNames(job="team_job"))) == JobName("mine")


class Server:
    """Series of devices and of labels of pods."""

    def __init__(self, devices: list[dict[str, str]], pods: list[dict[str, str]] | None = None) -> None:
        self._devices, self._pods = devices, pods or []

    def series(self, matches: list[str], *_: float) -> list[dict[str, str]]:
        return self._pods if "kube_pod_labels" in matches[0] else self._devices


def gpus(node: str, n: int, **labels: str) -> list[dict[str, str]]:
    return [{"__name__": "c", "Hostname": node, "gpu": str(gpu), "job": "dcgm", **labels} for gpu in range(n)]


def test_jobs_of_one_scrape_are_told_apart() -> None:
    series = [
        *gpus("a", 2, pod="llama-worker-0", namespace="ml"),
        *gpus("b", 2, pod="llama-worker-1", namespace="ml"),
        *gpus("c", 4, hpc_job="4711"),
        *gpus("d", 1),
    ]
    server: Any = Server(series)
    found = find_jobs(server, ["c"], 0.0, 1.0)
    assert [(each.job.name, each.job.by, each.devices, each.nodes) for each in found] == [
        ("4711", "hpc_job", 4, ("c",)),
        ("dcgm", "job of the scrape", 1, ("d",)),
        ("llama", "names of pods", 4, ("a", "b")),
    ]


class PodServer(Server):
    """The same, and the names of the metrics; devices have the label `pod` only."""

    def series(self, matches: list[str], *_: float) -> list[dict[str, str]]:
        return [] if "exported_pod" in matches[0] else super().series(matches)

    def label_values(self, *_: object) -> list[str]:
        return ["c"]

    def query(self, *_: object) -> list[dict[str, str]]:
        return []


@for_each(
    ("job", "pods"),
    [
        ("gpt", ["gpt-0", "gpt-1"]),
        ("gpt-2", ["gpt-2-0"]),
        # Sets of pods, as of a LeaderWorkerSet: no pod is called `set-NUMBER`.
        ("set", ["set-0-0", "set-0-1"]),
    ],
)
def test_a_job_has_no_pods_of_a_job_whose_name_goes_on(job: str, pods: list[str]) -> None:
    names = ("gpt-0", "gpt-1", "gpt-2-0", "set-0-0", "set-0-1")
    server: Any = PodServer(
        [
            labels
            for name in names
            if name.startswith(job)
            for labels in gpus("a", 1, pod=name, namespace="ml")
        ]
    )
    found = JobSearch(server, job, 0.0, 1.0, ["c"], (), None, LabelMap()).find()
    assert found is not None
    assert [pod.name for pod in found.pods] == pods


def test_each_exporter_shows_its_devices() -> None:
    dcgm = [
        f"DCGM_FI_DEV_{name}" for name in ("SM_CLOCK", "GPU_UTIL", "FB_USED", "POWER_USAGE", "XID_ERRORS")
    ]
    assert set(anchors([*dcgm, "amd_gpu_gfx_activity"])) == {*dcgm[:3], "amd_gpu_gfx_activity"}


def test_a_namespace_limits_the_jobs() -> None:
    series = [*gpus("a", 1, pod="x-0", namespace="red"), *gpus("b", 1, pod="x-0", namespace="blue")]
    server: Any = Server(series)
    assert len(find_jobs(server, ["c"], 0.0, 1.0)) == 2
    (only,) = find_jobs(server, ["c"], 0.0, 1.0, namespace="red")
    assert only.nodes == ("a",)


def test_labels_of_pods_rename_the_job() -> None:
    pod = {"namespace": "ml", "pod": "odd-name-x", "label_volcano_sh_job_name": "vc"}
    server: Any = Server(gpus("a", 1, pod="odd-name-x", namespace="ml"), [pod])
    assert [each.job.name for each in find_jobs(server, ["c"], 0.0, 1.0)] == ["vc"]
