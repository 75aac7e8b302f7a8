"""Which jobs there are: the names that labels of devices, alerts and pods give to jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rca.sources.prometheus import kubernetes
from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.label_map import LabelMap
from rca.sources.prometheus.promql import hosts, matcher, selector

#: Labels in which exporters write the number or the name of a batch job.
JOB_LABELS = ("hpc_job", "job_id", "slurm_job_id", "slurm_job")
#: The label that Prometheus itself adds: the name of the scrape.
SCRAPE_LABEL = "job"
#: Labels with the name of the machine, the most certain first.
NODE_LABELS = (
    "Hostname",
    "hostname",
    "host_name",
    "node",
    "kubernetes_node",
    "k8s_node_name",
    "nodename",
    "instance",
)
#: Labels with a GPU's index, the most certain first, with its UUID, and with its instance or partition.
GPU_LABELS = ("gpu", "GPU", "gpu_id", "gpu_number", "index", "minor_number")
UUID_LABELS = ("UUID", "uuid", "gpu_uuid", "hw_id")
INSTANCE_LABELS = ("GPU_I_ID", "gpu_partition_id")
DEVICE_LABELS = (*GPU_LABELS, *UUID_LABELS, *INSTANCE_LABELS)
#: Metrics whose series show which devices there are; those that every exporter has come first.
_ANCHORS, _PREFERRED = 3, ("sm_clock", "gpu_util", "fb_used", "gfx_activity", "power")
#: Kinds of pods that launchers put between the name of a job and the number of a pod.
_KINDS = "master|worker|workers|chief|launcher|leader|head|ps|evaluator|trainer|node|task|replica|server"
#: ``JOB-KIND-3``, ``JOB-KIND-0-3-x7k2p`` of a JobSet, ``JOB-3-x7k2p``, ``JOB-3``.
_POD_OF_KIND = re.compile(rf"(?P<job>.+)-(?:{_KINDS})-\d{{1,6}}(?:-\d{{1,6}})?(?:-[a-z0-9]{{5}})?")
_POD = re.compile(r"(?P<job>.+)-\d{1,6}(?:-[a-z0-9]{5})?")
#: By default the exporter in a pod calls the machine by the name of its own pod.
EXPORTER_POD = re.compile(r".*exporter-\w+")

Labels = Mapping[str, str]
#: Namespace and name.
PodName = tuple[str, str]


@dataclass(frozen=True, order=True)
class JobName:
    """What a job is called.

    Attributes
    ----------
    namespace : str
        Of its pods; empty outside Kubernetes.
    by : str
        What names it, in words.
    """

    name: str
    namespace: str = ""
    by: str = field(default="", compare=False)


@dataclass(frozen=True)
class KnownJob:
    """A job for which devices or machines report.

    Attributes
    ----------
    devices : int
    nodes : tuple of str
        Machines of its devices, sorted.
    """

    job: JobName
    devices: int
    nodes: tuple[str, ...]


def job_of(
    labels: Labels, label_map: LabelMap | None = None, pods: Mapping[PodName, JobName] | None = None
) -> JobName | None:
    """The job that the labels of a device's series, or of an alert about it, name; None if they name none.

    Parameters
    ----------
    pods : mapping of pod to JobName, optional
        Jobs of the pods by the labels of their controllers.
    """
    own = None if label_map is None else label_map.labels.job
    if own is not None:
        return JobName(labels[own], by=own) if labels.get(own) else None
    pod = kubernetes.pod_name(labels)
    if pod is not None and pods is not None and pod in pods:
        return pods[pod]
    namespace = "" if pod is None else pod[0]
    controller = kubernetes.job_of_labels(labels)
    if controller is not None:
        return JobName(controller[1], namespace, controller[0])
    label = next((name for name in JOB_LABELS if labels.get(name)), None)
    if label is not None:
        return JobName(labels[label], by=label)
    if pod is None or EXPORTER_POD.fullmatch(pod[1]):
        return None
    found = _POD_OF_KIND.fullmatch(pod[1]) or _POD.fullmatch(pod[1])
    return None if found is None else JobName(found["job"], namespace, "names of pods")


def job_id(name: str, namespace: str | None) -> str:
    """Id of a job in windows: two namespaces may have jobs of one name."""
    return f"{namespace}/{name}" if namespace else name


def anchors(names: Sequence[str]) -> list[str]:
    """A few metrics of each exporter, which are enough to see every device."""
    ordered = sorted(names, key=lambda name: (_preference(name), name))
    by_exporter: dict[str, list[str]] = {}
    for name in ordered:
        by_exporter.setdefault(name.split("_", 1)[0].lower(), []).append(name)
    return [name for held in by_exporter.values() for name in held[:_ANCHORS]]


def _preference(name: str) -> int:
    return next((place for place, part in enumerate(_PREFERRED) if part in name.lower()), len(_PREFERRED))


def find_jobs(
    server: Prometheus,
    names: Sequence[str],
    start: float,
    end: float,
    *,
    matchers: Sequence[str] = (),
    namespace: str | None = None,
    label_map: LabelMap | None = None,
    node: str | None = None,
) -> list[KnownJob]:
    """Every job for which a device reports, by name.

    Parameters
    ----------
    names : sequence of str
        Metrics of devices that the server has; else of machines.
    start, end : float, Unix seconds
    matchers : sequence of str
        Matchers that every series has to meet.
    node : str, optional
        Only jobs with a device on this machine.

    Raises
    ------
    SourceError
        If the server cannot be reached, or answers with something else.
    """
    if not names:
        return []
    chosen = (matcher("__name__", anchors(names)), *matchers)
    on_node = [(hosts(label, [node]),) for label in NODE_LABELS] if node is not None else [()]
    series = server.series([selector(*chosen, *each) for each in on_node], start, end)
    pods = _labelled_pods(server, matchers, start, end)
    found: dict[JobName, tuple[set[tuple[str, ...]], set[str]]] = {}
    for labels in series:
        job = job_of(labels, label_map, pods)
        if job is None and labels.get(SCRAPE_LABEL) and (label_map is None or label_map.labels.job is None):
            job = JobName(labels[SCRAPE_LABEL], by="job of the scrape")
        if job is None or (namespace is not None and job.namespace != namespace):
            continue
        own = None if label_map is None else label_map.labels.node
        machine = next((labels[name] for name in (own, *NODE_LABELS) if name and labels.get(name)), "")
        devices, nodes = found.setdefault(job, (set(), set()))
        devices.add((machine, *(labels.get(name, "") for name in DEVICE_LABELS)))
        nodes.add(machine)
    return [
        KnownJob(job, len(devices), tuple(sorted(nodes))) for job, (devices, nodes) in sorted(found.items())
    ]


def _labelled_pods(
    server: Prometheus, matchers: Sequence[str], start: float, end: float
) -> dict[PodName, JobName]:
    """Jobs of the pods that have labels of a controller."""
    named = matcher("__name__", [kubernetes.POD_LABELS])
    asked = [selector(named, *matchers, f'{label}!=""') for label in kubernetes.job_labels()]
    found: dict[PodName, JobName] = {}
    for labels in server.series(asked, start, end):
        pod, job = kubernetes.pod_name(labels), kubernetes.job_of_labels(labels)
        if pod is not None and job is not None:
            found[pod] = JobName(job[1], pod[0], job[0])
    return found
