"""Pods of a job in Kubernetes, and the order in which launchers number them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Metrics of kube-state-metrics.
POD_LABELS, POD_INFO = "kube_pod_labels", "kube_pod_info"
#: What exporters write before the name of a pod's label: kube-state-metrics, and versions of DCGM's exporter.
PREFIXES = ("label_", "pod_label_", "")
#: Labels of the pod that uses a device: ``exported_`` if the scrape adds the exporter's own pod, ``k8s_`` of
#: OpenTelemetry.
POD_PAIRS = (
    ("exported_pod", "exported_namespace"),
    ("k8s_pod_name", "k8s_namespace_name"),
    ("pod", "namespace"),
)
#: Replica types that hold the first ranks.
_FIRST = {"master": 0, "chief": 1, "launcher": 2}
_BY_NAME = re.compile(
    r"(?:(?P<group>[a-z][a-z0-9]*)-)?(?P<first>\d{1,6})(?:-(?P<second>\d{1,4}))?(?:-[a-z0-9]{5})?"
)
_UNSUITED = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True)
class Scheme:
    """Labels by which one controller marks the pods of a job.

    Attributes
    ----------
    job : str
        The label with the job's name.
    index : str
        Number of the pod in its group.
    group : str, optional
        Kind of the pod, such as master or worker.
    outer : str, optional
        Number of the set of pods in which `index` counts.
    """

    title: str
    job: str
    index: str
    group: str | None = None
    outer: str | None = None


SCHEMES: tuple[Scheme, ...] = (
    Scheme(
        "Kubeflow training operator",
        "training.kubeflow.org/job-name",
        "training.kubeflow.org/replica-index",
        group="training.kubeflow.org/replica-type",
    ),
    Scheme(
        "JobSet",
        "jobset.sigs.k8s.io/jobset-name",
        "batch.kubernetes.io/job-completion-index",
        group="jobset.sigs.k8s.io/replicatedjob-name",
        outer="jobset.sigs.k8s.io/job-index",
    ),
    Scheme("Volcano", "volcano.sh/job-name", "volcano.sh/task-index", group="volcano.sh/task-spec"),
    Scheme(
        "LeaderWorkerSet",
        "leaderworkerset.sigs.k8s.io/name",
        "leaderworkerset.sigs.k8s.io/worker-index",
        outer="leaderworkerset.sigs.k8s.io/group-index",
    ),
    Scheme("Kueue pod group", "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-pod-index"),
    Scheme("Indexed Job", "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"),
    Scheme("Indexed Job", "job-name", "batch.kubernetes.io/job-completion-index"),
)


@dataclass(frozen=True, order=True)
class Pod:
    """A pod of a job.

    Attributes
    ----------
    group : str
        Kind of the pod; empty if all are alike.
    outer, index : int
        Number of its set of pods, and its number in it.
    """

    namespace: str
    name: str
    group: str = ""
    outer: int = 0
    index: int = 0


def label_name(label: str) -> str:
    """A Kubernetes label's name as exporters write it."""
    return _UNSUITED.sub("_", label)


def pod_of(labels: Mapping[str, str], job: str) -> tuple[Scheme, Pod] | None:
    """The pod of a series with pod labels; None if it is none of the job's, or has no index."""
    namespace, name = pod_name(labels) or ("", "")
    for scheme in SCHEMES:
        if not name or _label(labels, scheme.job) != job:
            continue
        index, outer = (_number(_label(labels, each)) for each in (scheme.index, scheme.outer))
        if index is not None:
            group = (_label(labels, scheme.group) or "").lower()
            return scheme, Pod(namespace, name, group, outer or 0, index)
    return None


def job_of_labels(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Title of the controller and name of the job, by the labels of a pod; None if it has none."""
    found = ((scheme.title, _label(labels, scheme.job)) for scheme in SCHEMES)
    return next(((title, job) for title, job in found if job), None)


def pod_by_name(namespace: str, name: str, job: str) -> Pod | None:
    """The pod of a job by its name, as controllers form it: ``JOB-worker-3``, ``JOB-3-x7k2p``, ``JOB-3``."""
    found = _BY_NAME.fullmatch(name.removeprefix(f"{job}-")) if name.startswith(f"{job}-") else None
    if found is None:
        return None
    first, second = int(found["first"]), found["second"]
    outer, index = (0, first) if second is None else (first, int(second))
    return Pod(namespace, name, found["group"] or "", outer, index)


def pod_name(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Namespace and name of the pod in a series' labels."""
    for pod, namespace in POD_PAIRS:
        if labels.get(pod):
            return labels.get(namespace) or labels.get("namespace", ""), labels[pod]
    return None


def ordinals(pods: Iterable[Pod], with_devices: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Position of each pod among those that hold ranks: (namespace, name) -> number.

    Masters come first, then the other groups by name. A pod that is missing keeps its number. Groups without
    any device, such as launchers, hold no ranks.

    Parameters
    ----------
    with_devices : iterable of (namespace, name)
    """
    held = list(pods)
    busy = set(with_devices)
    groups = {pod.group for pod in held if (pod.namespace, pod.name) in busy}
    found: dict[tuple[str, str], int] = {}
    offset = 0
    for group in sorted(groups, key=lambda each: (_FIRST.get(each, len(_FIRST)), each)):
        members = [pod for pod in held if pod.group == group]
        size = 1 + max(pod.index for pod in members)
        for pod in members:
            found[pod.namespace, pod.name] = offset + pod.outer * size + pod.index
        offset += size * (1 + max(pod.outer for pod in members))
    return found


def _label(labels: Mapping[str, str], label: str | None) -> str | None:
    if label is None:
        return None
    name = label_name(label)
    return next((labels[prefix + name] for prefix in PREFIXES if labels.get(prefix + name)), None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 7 else None


def job_labels() -> list[str]:
    """Names of the labels that may hold a job's name, as exporters write them."""
    names = dict.fromkeys(label_name(scheme.job) for scheme in SCHEMES)
    return [prefix + name for name in names for prefix in PREFIXES]
