"""Which metric names to ask for, and the level at which their exporters report."""

from __future__ import annotations

from typing import Literal

from rca.window.catalogue import resolve

Level = Literal["device", "container", "node"]

#: Exporters count their own process under these names; it is none of the job's.
_OWN = ("process_", "python_")
#: Virtual interfaces and disks of containers: their traffic is counted on the real one as well.
VIRTUAL = "|".join(
    [
        *("veth.*", "cali.*", "lxc.*", "cilium.*", "docker.*", "br-.*", "virbr.*", "cni.*", "flannel.*"),
        *("kube-.*", "nodelocaldns", "tunl.*", "dummy.*", "lo", "loop.*", "ram.*"),
    ]
)
#: Reported per core, for which only the sums are read.
CPU_TIMES = ("node_cpu_seconds_total", "node_cpu")


def level_of(name: str) -> Level | None:
    """Where a metric is measured; None if no diagnosis uses it."""
    signal = resolve(name)
    if signal is None or not signal.all_channels() or name.startswith(_OWN):
        return None
    if signal.per_gpu:
        return "device"
    return "container" if name.startswith("container_") else "node"


def names_by_level(names: list[str]) -> dict[Level, list[str]]:
    """The used names of each level, sorted."""
    held: dict[Level, list[str]] = {"device": [], "container": [], "node": []}
    for name in sorted(names):
        level = level_of(name)
        if level is not None:
            held[level].append(name)
    return held
