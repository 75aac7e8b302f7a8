"""Find the devices of a job: by its pods, its Slurm number, the job of the scrape, or the label map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rca.errors import InvalidInput, cut
from rca.sources.prometheus import kubernetes
from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.job_names import (
    JOB_LABELS,
    NODE_LABELS,
    SCRAPE_LABEL,
    Labels,
    anchors,
    find_jobs,
    job_of,
)
from rca.sources.prometheus.kubernetes import Pod
from rca.sources.prometheus.label_map import LabelMap
from rca.sources.prometheus.promql import chunks, escaped, hosts, matcher, regex, selector

#: The label that tells clusters behind one address apart.
CLUSTER_LABEL = "cluster"
#: Names in an error.
_SHOWN = 10


@dataclass(frozen=True)
class JobDevices:
    """How the series of a job's devices are selected.

    Attributes
    ----------
    matchers : tuple of tuple of str
        Alternatives; the matchers of one hold together.
    series : tuple of mapping of str to str
        Labels of one metric of each device, or more.
    names : tuple of str
        Metrics that the devices have.
    pods : tuple of Pod
        Empty outside Kubernetes.
    node_of_pod : mapping of (namespace, name) to str
        The last one, of pods that moved.
    current : set of (namespace, name)
        Pods that exist at the end; empty if kube-state-metrics does not say.
    """

    matchers: tuple[tuple[str, ...], ...]
    series: tuple[Labels, ...]
    names: tuple[str, ...]
    pods: tuple[Pod, ...] = ()
    node_of_pod: Mapping[tuple[str, str], str] = field(default_factory=dict)
    current: frozenset[tuple[str, str]] = frozenset()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobSearch:
    """One look for a job.

    Parameters
    ----------
    start, end : float, Unix seconds
    names : sequence of str
        Metrics of devices that the server has.
    matchers : tuple of str
        Matchers that every series has to meet.
    """

    server: Prometheus
    job: str
    start: float
    end: float
    names: Sequence[str]
    matchers: tuple[str, ...]
    namespace: str | None
    label_map: LabelMap

    def find(self) -> JobDevices | None:
        """The devices of the job; None if no device reports for it.

        Raises
        ------
        InvalidInput
            If several jobs have this name, or no device names the job's pods.
        """
        own_label = self.label_map.labels.job
        ways = (
            (self._by_nodes, self._by_pods)
            if own_label is None and self.label_map.listed_nodes
            else (self._by_pods, self._by_label)
            if own_label is None
            else (lambda: self._by_label((own_label,)),)
        )
        for way in ways:
            found = way()
            if found is not None:
                self.refuse_several_clusters(found.series)
                return found
        return None

    def _series(self, *alternatives: tuple[str, ...]) -> list[dict[str, str]]:
        """Series of the devices that one of the alternatives matches."""
        names = self._names(*alternatives)
        if not names:
            return []
        # A few metrics are enough to see every device.
        asked = [
            selector(matcher("__name__", anchors(names)), *self.matchers, *each) for each in alternatives
        ]
        return self.server.series(asked, self.start, self.end)

    def _names(self, *alternatives: tuple[str, ...]) -> list[str]:
        """Metrics of devices among the series that one of the alternatives matches."""
        named = matcher("__name__", self.names)
        asked = [selector(named, *self.matchers, *each) for each in alternatives]
        return self.server.label_values("__name__", asked, self.start, self.end) if asked else []

    def _by_label(self, labels: Sequence[str] = (*JOB_LABELS, SCRAPE_LABEL)) -> JobDevices | None:
        for label in labels:
            chosen = self._with_namespace((matcher(label, [self.job]),))
            found = self._series(chosen)
            if found:
                return JobDevices((chosen,), tuple(found), tuple(self._names(chosen)))
        return None

    def _by_nodes(self) -> JobDevices | None:
        nodes = self.label_map.listed_nodes
        own = self.label_map.labels.node
        for label in (own,) if own is not None else NODE_LABELS:
            chosen = self._with_namespace((hosts(label, nodes),))
            found = self._series(chosen)
            if found:
                return JobDevices((chosen,), tuple(found), tuple(self._names(chosen)))
        return None

    def _by_pods(self) -> JobDevices | None:
        pods, notes = self._labelled_pods()
        if not pods:
            pods, notes = self._named_pods()
        pods = self._of_one_job(pods)
        if not pods:
            return None
        for pod_label, namespace_label in self._pod_pairs():
            chosen = tuple(
                (matcher(namespace_label, [pods[0].namespace]), matcher(pod_label, names))
                for names in chunks(sorted({pod.name for pod in pods}))
            )
            found = self._series(*chosen)
            if found:
                return JobDevices(
                    chosen,
                    tuple(found),
                    tuple(self._names(*chosen)),
                    tuple(pods),
                    *self._nodes_of(pods),
                    tuple(notes),
                )
        raise InvalidInput(
            f"{cut(self.job)} has {len(pods)} pods, but no metric of a device names one of them",
            hint="let DCGM's exporter map pods (DCGM_EXPORTER_KUBERNETES=true), or place ranks with --labels",
        )

    def machines_of_pods(self) -> JobDevices | None:
        """The job's pods by their labels, with their nodes and without devices; None without any."""
        pods, notes = self._labelled_pods()
        pods = self._of_one_job(pods)
        return None if not pods else JobDevices((), (), (), tuple(pods), *self._nodes_of(pods), tuple(notes))

    def _of_one_job(self, pods: Sequence[Pod]) -> list[Pod]:
        """The pods in the namespace that was given."""
        if self.namespace is not None:
            pods = [pod for pod in pods if pod.namespace == self.namespace]
        self._refuse_several(pods)
        return sorted(set(pods))

    def _pod_pairs(self) -> tuple[tuple[str, str], ...]:
        own = self.label_map.labels
        if own.pod is not None:
            return ((own.pod, own.namespace or "namespace"),)
        return kubernetes.POD_PAIRS

    def _labelled_pods(self) -> tuple[list[Pod], list[str]]:
        """Pods by the labels that controllers give them."""
        named = matcher("__name__", [kubernetes.POD_LABELS])
        chosen = [(matcher(label, [self.job]),) for label in kubernetes.job_labels()]
        asked = [selector(named, *self.matchers, *each) for each in chosen]
        series = self.server.series(asked, self.start, self.end) or self._series(*chosen)
        found = [held for labels in series if (held := kubernetes.pod_of(labels, self.job)) is not None]
        if not found:
            return [], []
        titles = sorted({scheme.title for scheme, _ in found})
        return [pod for _, pod in found], [f"ranks follow the pod labels of {' and '.join(titles)}"]

    def _named_pods(self) -> tuple[list[Pod], list[str]]:
        """Pods by their names: kube-state-metrics exports no labels of pods unless it is set up for them."""
        pattern = f"{escaped(self.job)}-.+"
        found: list[Pod] = []
        for pod_label, namespace_label in self._pod_pairs():
            for labels in self._series((regex(pod_label, pattern),)):
                if pod_label == "pod" and labels.get("exported_pod"):
                    # The exporter's own pod.
                    continue
                pod = kubernetes.pod_by_name(
                    labels.get(namespace_label, ""), labels.get(pod_label, ""), self.job
                )
                found += [pod] if pod is not None else []
            if found:
                break
        # Of `gpt-2-0`, the job is `gpt-2`; without pods of its own, `gpt` has sets of pods.
        found = [pod for pod in found if _names_job(pod, self.job)] or found
        note = (
            "ranks follow the names of pods, for lack of kube_pod_labels: start kube-state-metrics with "
            "--metric-labels-allowlist=pods=[*]"
        )
        return found, [note]

    def _nodes_of(self, pods: Sequence[Pod]) -> tuple[dict[tuple[str, str], str], frozenset[tuple[str, str]]]:
        """Node of each pod, and the pods that exist at the end."""
        named = (matcher("__name__", [kubernetes.POD_INFO]), matcher("namespace", [pods[0].namespace]))
        asked = [
            selector(*named, *self.matchers, matcher("pod", names))
            for names in chunks([pod.name for pod in pods])
        ]
        earlier = _pod_nodes(self.server.series(asked, self.start, self.end))
        last = _pod_nodes([each["metric"] for one in asked for each in self.server.query(one, self.end)])
        return earlier | last, frozenset(last)

    def _refuse_several(self, pods: Sequence[Pod]) -> None:
        namespaces = sorted({pod.namespace for pod in pods})
        if len(namespaces) < 2:
            return
        counts = [sum(pod.namespace == each for pod in set(pods)) for each in namespaces]
        listed = ", ".join(
            f"{namespace} ({count} pods)" for namespace, count in zip(namespaces, counts, strict=True)
        )
        raise InvalidInput(
            f"{len(namespaces)} jobs are called {cut(self.job)}, in the namespaces {cut(listed, 400)}",
            hint=f"choose one with --namespace {namespaces[0]}",
        )

    def refuse_several_clusters(self, series: Sequence[Labels]) -> None:
        clusters = sorted({name for labels in series if (name := labels.get(CLUSTER_LABEL))})
        if len(clusters) > 1:
            raise InvalidInput(
                f"{cut(self.job)} runs in {len(clusters)} clusters: {cut(', '.join(clusters), 400)}",
                hint=f"choose one with --match {matcher(CLUSTER_LABEL, clusters[:1])!r}",
            )

    def _with_namespace(self, chosen: tuple[str, ...]) -> tuple[str, ...]:
        if self.namespace is None:
            return chosen
        return (*chosen, matcher(self.label_map.labels.namespace or "namespace", [self.namespace]))

    def unknown(self, node_names: Sequence[str]) -> InvalidInput:
        """The error of a job for which neither a device nor a machine reports; it lists those that do.

        Parameters
        ----------
        node_names : sequence of str
            Metrics of machines that the server has.
        """
        known: dict[str, dict[str, None]] = {}
        for each in find_jobs(
            self.server,
            self.names or node_names,
            self.start,
            self.end,
            matchers=self.matchers,
            namespace=self.namespace,
            label_map=self.label_map,
        ):
            known.setdefault(each.job.by, {})[each.job.name] = None
        listed = "; ".join(
            f"{by}: {', '.join(map(cut, list(names)[:_SHOWN]))}{', ...' if len(names) > _SHOWN else ''}"
            for by, names in known.items()
        )
        place = "" if self.namespace is None else f" in the namespace {cut(self.namespace)}"
        kind = "device" if self.names else "machine"
        return InvalidInput(
            f"no {kind} reports for the job {cut(self.job)}{place} in this time",
            hint=f"jobs that do: {listed}" if listed else "place ranks by node with --labels",
        )


def check_labels(
    server: Prometheus,
    label_map: LabelMap,
    device_names: Sequence[str],
    node_names: Sequence[str],
    matchers: Sequence[str],
    start: float,
    end: float,
) -> None:
    """Refuse a map with labels that no series of the devices has; without devices, of the machines.

    Parameters
    ----------
    device_names, node_names : sequence of str
        Metrics of devices and of machines that the server has.
    start, end : float, Unix seconds

    Raises
    ------
    InvalidInput
        Naming each of them.
    """
    kind, names, used = (
        ("device", device_names, None) if device_names else ("machine", node_names, {"job", "node"})
    )
    own = label_map.labels.model_dump(exclude_none=True, include=used)
    asked = [selector(matcher("__name__", names), *matchers)]
    wrong = [
        f"{part}: {label}"
        for part, label in own.items()
        if not any(server.label_values(label, asked, start, end))
    ]
    if not wrong:
        return
    one = [selector(matcher("__name__", anchors(names)), *matchers)]
    held = sorted({name for labels in server.series(one, start, end) for name in labels} - {"__name__"})
    raise InvalidInput(
        f"no {kind} has the label of the map for {cut(', '.join(wrong), 400)}",
        hint=f"labels of the {kind}s: {cut(', '.join(held), 400)}",
    )


def _names_job(pod: Pod, job: str) -> bool:
    named = job_of({"pod": pod.name})
    return named is not None and named.name == job


def _pod_nodes(series: Sequence[Labels]) -> dict[tuple[str, str], str]:
    return {
        (labels.get("namespace", ""), labels["pod"]): labels["node"]
        for labels in series
        if labels.get("node") and labels.get("pod")
    }
