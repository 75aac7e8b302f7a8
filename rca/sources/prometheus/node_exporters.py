"""Join exporters of machines with the machines of a job: they call them by address, port or domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rca.sources.prometheus.client import Prometheus
from rca.sources.prometheus.job_names import NODE_LABELS
from rca.sources.prometheus.promql import chunks, hosts, matcher, selector
from rca.window.node_names import LOOPBACK, same_nodes

#: Node exporter's metric that has the machine's own name.
UNAME = "node_uname_info"
#: Labels with a machine's name, the most certain first: `nodename` is of the machine itself.
_NAMES = tuple(dict.fromkeys(("nodename", "node", "kubernetes_node", *NODE_LABELS)))


@dataclass(frozen=True)
class NodeExporters:
    """Which exporters report on which machines of a job.

    Attributes
    ----------
    nodes : tuple of str
        Machines of the job.
    node_of_host : mapping of str to str
        Host part of ``instance`` -> machine.
    """

    nodes: tuple[str, ...]
    node_of_host: Mapping[str, str]

    @classmethod
    def find(
        cls, server: Prometheus, nodes: Sequence[str], matchers: Sequence[str], start: float, end: float
    ) -> NodeExporters:
        """Look for the exporters of the machines by the names that node exporters give."""
        series = server.series([selector(matcher("__name__", [UNAME]), *matchers)], start, end)
        found = {node: node for node in nodes}
        for label in _NAMES:
            names = [labels.get(label, "") for labels in series]
            for labels, index in zip(series, same_nodes(names, nodes).tolist(), strict=True):
                host = host_of(labels.get("instance", ""))
                if index >= 0 and host and host not in LOOPBACK:
                    found.setdefault(host, nodes[index])
        return cls(tuple(nodes), found)

    def matchers(self) -> list[str]:
        """Matchers that select all exporters on the machines."""
        return [hosts("instance", names) for names in chunks(sorted(self.node_of_host))]

    def node_of(self, labels: Mapping[str, str]) -> str | None:
        """The machine that a series is about; None if it is none of the job's."""
        return self.node_of_host.get(host_of(labels.get("instance", "")))

    def silent(self, reporting: Iterable[str]) -> list[str]:
        """Machines without any such series."""
        return sorted(set(self.nodes) - set(reporting))


def machine_of(labels: Mapping[str, str]) -> str | None:
    """Name of the machine that a series of a node exporter is about; None if its labels do not say."""
    return next((host_of(labels[name]) for name in _NAMES if labels.get(name)), None)


def host_of(instance: str) -> str:
    """The address without its port."""
    host, colon, port = instance.rpartition(":")
    return host if colon and port.isdigit() else instance
