"""Find the machines of a job without GPU exporters: by the label map, its pods, or the job of the scrape."""

from __future__ import annotations

from collections.abc import Sequence

from rca.sources.prometheus.job_devices import JobDevices, JobSearch
from rca.sources.prometheus.job_names import SCRAPE_LABEL, Labels
from rca.sources.prometheus.kubernetes import ordinals
from rca.sources.prometheus.label_map import LabelMap
from rca.sources.prometheus.node_exporters import UNAME, machine_of
from rca.sources.prometheus.promql import matcher, selector
from rca.sources.prometheus.rank_places import Device, RankPlaces, natural
from rca.window.job import RankPlace

#: Metrics of node exporters that show which machines there are.
_ANCHORS = (UNAME, "node_load1", "node_memory_MemAvailable_bytes", "node_boot_time_seconds")
_NOTE = "no GPU exporter reports for the job: its machines are compared, each stands for one rank"


def find_machines(search: JobSearch, names: Sequence[str]) -> tuple[JobDevices, RankPlaces] | None:
    """The machines of a job, each with a rank; None if there are none.

    Parameters
    ----------
    names : sequence of str
        Metrics of machines that the server has.

    Raises
    ------
    InvalidInput
        If several jobs have this name.
    """
    label_map = search.label_map
    if label_map.labels.job is None:
        if label_map.listed_nodes:
            nodes = label_map.listed_nodes
            return _without_devices(), _listed(nodes, label_map)
        found = search.machines_of_pods()
        if found is not None:
            return found, _numbered(_nodes_of_pods(found), found.notes)
    label = label_map.labels.job or SCRAPE_LABEL
    anchors = sorted({*_ANCHORS, *names[:1]})
    asked = selector(matcher("__name__", anchors), *search.matchers, matcher(label, [search.job]))
    series = search.server.series([asked], search.start, search.end)
    search.refuse_several_clusters(series)
    machines = sorted(_names(series, label_map.labels.node), key=natural)
    if not machines:
        return None
    return _without_devices(), _numbered(machines, ("ranks follow the names of nodes",))


def _names(series: Sequence[Labels], own: str | None) -> set[str]:
    """Names of the machines: of each exporter the most certain one, by the label `own` if it is given."""
    found: dict[str, str] = {}
    # Only the series of UNAME have the machine's own name.
    for labels in sorted(series, key=lambda each: each.get("__name__") != UNAME):
        name = labels.get(own) if own is not None else machine_of(labels)
        if name:
            found.setdefault(labels.get("instance", name), name)
    return set(found.values())


def _without_devices() -> JobDevices:
    return JobDevices((), (), ())


def _nodes_of_pods(found: JobDevices) -> list[str]:
    """Nodes in the order of the numbers of their pods."""
    held: dict[tuple[str, str], list[Device]] = {(pod.namespace, pod.name): [] for pod in found.pods}
    number = ordinals(found.pods, held)
    ordered = sorted(number, key=lambda pod: (number[pod], pod))
    return list(dict.fromkeys(found.node_of_pod[pod] for pod in ordered if pod in found.node_of_pod))


def _numbered(nodes: Sequence[str], notes: Sequence[str]) -> RankPlaces:
    places = tuple(RankPlace(rank=rank, node=node) for rank, node in enumerate(nodes))
    return RankPlaces({}, places, max(len(places), 1), (_NOTE, *notes))


def _listed(nodes: Sequence[str], label_map: LabelMap) -> RankPlaces:
    """Places of the map: all ranks of a machine, if it lists them."""
    given = label_map.ranks_by_gpu()
    if not given:
        return _numbered(nodes, ())
    ranks = {rank: node for node, held in given.items() for rank in held.values()}
    places = tuple(RankPlace(rank=rank, node=ranks[rank]) for rank in sorted(ranks))
    return RankPlaces({}, places, 1 + max(ranks), (_NOTE,))
