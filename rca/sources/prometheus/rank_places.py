"""Number the ranks of a job by the devices that its exporters report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rca.errors import InvalidInput, cut
from rca.sources.prometheus.job_devices import JobDevices
from rca.sources.prometheus.job_names import (
    EXPORTER_POD,
    GPU_LABELS,
    INSTANCE_LABELS,
    NODE_LABELS,
    UUID_LABELS,
    Labels,
)
from rca.sources.prometheus.kubernetes import POD_PAIRS, ordinals, pod_name
from rca.sources.prometheus.label_map import LabelMap
from rca.sources.prometheus.node_exporters import host_of
from rca.window.job import RankPlace

#: Labels of the exporter, and of the scrape, with the name of the machine.
_HOST_LABELS, _SCRAPE_LABELS = NODE_LABELS[:3], NODE_LABELS[3:]
_DIGITS = re.compile(r"(\d+)$")
_SHOWN = 3

#: Node, GPU index (-1 if only its UUID is known), instance of the GPU, UUID if there is no index.
Device = tuple[str, int, str, str]


@dataclass(frozen=True)
class RankPlaces:
    """Ranks of a job and their devices.

    Attributes
    ----------
    ranks : mapping of device to int
    notes : tuple of str
        How ranks were numbered, and what could not be.
    """

    ranks: Mapping[Device, int]
    places: tuple[RankPlace, ...]
    world_size: int
    notes: tuple[str, ...]


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key in which node2 comes before node10."""
    return tuple(
        # Python refuses numbers of thousands of digits; Kubernetes allows 253 characters in a name.
        (0, int(part), "") if part[0] in "0123456789" and len(part) < 254 else (1, 0, part)
        for part in re.split(r"([0-9]+)", text)
        if part
    )


def node_of(labels: Labels, found: JobDevices, label_map: LabelMap) -> str | None:
    """Name of the machine that a device's series is about."""
    own = label_map.labels.node
    if own is not None:
        return host_of(labels.get(own, "")) or None
    own_name = next((labels[label] for label in _HOST_LABELS if labels.get(label)), "")
    if own_name and not EXPORTER_POD.fullmatch(own_name):
        return host_of(own_name)
    pod = pod_name(labels)
    if pod is not None and pod in found.node_of_pod:
        return found.node_of_pod[pod]
    return next((host_of(labels[label]) for label in _SCRAPE_LABELS if labels.get(label)), None)


def device_of(labels: Labels, found: JobDevices, label_map: LabelMap) -> Device | None:
    """The device that a series is about; None if its labels do not say."""
    node = node_of(labels, found, label_map)
    own = label_map.labels.gpu
    names = GPU_LABELS if own is None else (own,)
    digits = next((match for name in names if (match := _DIGITS.search(labels.get(name, "")))), None)
    uuid = next((labels[name] for name in UUID_LABELS if labels.get(name)), "")
    if node is None or (digits is None and not uuid):
        return None
    part = next((labels[name] for name in INSTANCE_LABELS if labels.get(name)), "")
    return (node, -1, part, uuid) if digits is None else (node, int(digits[1][:6]), part, "")


class DeviceNames:
    """Devices of many series: a metric has a series of each device, with the same labels."""

    def __init__(self, found: JobDevices, label_map: LabelMap) -> None:
        self._found, self._label_map = found, label_map
        own = label_map.labels
        names = (
            *NODE_LABELS,
            *GPU_LABELS,
            *INSTANCE_LABELS,
            *UUID_LABELS,
            *chain(*POD_PAIRS),
            own.node,
            own.gpu,
        )
        self._labels = tuple(dict.fromkeys(name for name in names if name is not None))
        self._known: dict[tuple[str | None, ...], Device | None] = {}

    def of(self, labels: Labels) -> Device | None:
        """As `device_of`."""
        key = tuple(map(labels.get, self._labels))
        if key not in self._known:
            self._known[key] = device_of(labels, self._found, self._label_map)
        return self._known[key]


def place_ranks(found: JobDevices, label_map: LabelMap) -> RankPlaces:
    """Number the ranks.

    By the map if it lists ranks; by a label if the map names one; by pod in Kubernetes; otherwise by the
    natural order of nodes. Devices of a pod or node are ordered by index.

    Raises
    ------
    InvalidInput
        If no device can be placed.
    """
    devices: dict[Device, Labels] = {}
    unplaced: list[Labels] = []
    names = DeviceNames(found, label_map)
    for labels in found.series:
        device = names.of(labels)
        if device is None:
            unplaced.append(labels)
        else:
            devices.setdefault(device, labels)
    if not devices:
        raise _no_place(unplaced, label_map)
    devices = _without_parents(devices)
    notes = list(found.notes)
    if unplaced:
        notes.append(_gap(unplaced, label_map))
    if label_map.ranks:
        ranks, remarks = _listed(devices, label_map)
    elif label_map.labels.rank is not None:
        ranks, remarks = _by_rank_label(devices, label_map.labels.rank)
    elif found.pods:
        ranks, remarks = _by_pods(devices, found)
    else:
        ranks, remarks = _by_nodes(devices, label_map)
    if not ranks:
        raise _no_place(found.series, label_map)
    number_of_parts = Counter((node, gpu) for node, gpu, _, _ in ranks)
    places = tuple(
        RankPlace(
            rank=rank,
            node=node,
            gpu=gpu if gpu >= 0 and number_of_parts[node, gpu] == 1 else None,
            **_pod_of(devices[node, gpu, part, uuid], label_map),
        )
        for (node, gpu, part, uuid), rank in sorted(ranks.items(), key=lambda each: each[1])
    )
    size = 1 + max(ranks.values())
    absent = sorted(set(range(size)) - set(ranks.values()))
    if absent:
        notes.append(f"no device reports for {len(absent)} ranks: {_few(absent)}")
    return RankPlaces(ranks, places, size, (*notes, *remarks))


def _pod_of(labels: Labels, label_map: LabelMap) -> dict[str, str]:
    """The pod that uses a device, without that of the exporter."""
    own = label_map.labels
    if own.pod is not None:
        pod = labels.get(own.namespace or "namespace", ""), labels.get(own.pod, "")
    else:
        pod = pod_name(labels) or ("", "")
    held = {"namespace": pod[0], "pod": pod[1]}
    return {} if EXPORTER_POD.fullmatch(pod[1]) else {name: text for name, text in held.items() if text}


def _no_place(series: Sequence[Labels], label_map: LabelMap) -> InvalidInput:
    """The error of devices without a machine, a number or a rank; it names absent labels of the map."""
    own = label_map.labels.model_dump(exclude_none=True, include={"node", "gpu", "rank", "pod"})
    absent = [
        f"{part}: {label}" for part, label in own.items() if not any(each.get(label) for each in series)
    ]
    held = sorted({name for labels in series for name in labels} - {"__name__"})
    if absent:
        return InvalidInput(
            f"no device of the job has the label of the map for {cut(', '.join(absent))}",
            hint=f"labels of the devices: {cut(', '.join(held), 400)}",
        )
    return InvalidInput(
        "no device of the job has both a machine and a GPU index in its labels",
        hint=f"name the labels that hold them with --labels; there are {cut(', '.join(held), 400)}",
    )


def _without_parents(devices: Mapping[Device, Labels]) -> dict[Device, Labels]:
    """Without whole GPUs of which instances report: no rank runs on the whole."""
    divided = {(node, gpu) for node, gpu, part, _ in devices if part}
    return {device: labels for device, labels in devices.items() if device[2] or device[:2] not in divided}


def _listed(devices: Mapping[Device, Labels], label_map: LabelMap) -> tuple[dict[Device, int], list[str]]:
    given = label_map.ranks_by_gpu()
    ranks = {
        device: given[node][device[1]]
        for device in devices
        if (node := _listed_name(device[0], given)) is not None and device[1] in given[node]
    }
    left = sorted({f"{node} GPU {gpu}" for node, gpu, _, _ in devices.keys() - ranks.keys()}, key=natural)
    notes = [f"{len(left)} devices have no rank in the map: {_few(left)}"] if left else []
    return ranks, notes


def _by_rank_label(devices: Mapping[Device, Labels], label: str) -> tuple[dict[Device, int], list[str]]:
    numbers = {device: labels.get(label, "") for device, labels in devices.items()}
    ranks = {
        device: int(text)
        for device, text in numbers.items()
        if text.isascii() and text.isdigit() and len(text) < 7
    }
    if len(set(ranks.values())) < len(ranks):
        raise InvalidInput(f"two devices have the same rank in the label {label}")
    left = len(devices) - len(ranks)
    return ranks, [f"{left} devices have no rank in the label {label}"] if left else []


def _by_pods(devices: Mapping[Device, Labels], found: JobDevices) -> tuple[dict[Device, int], list[str]]:
    """Rank = number of the pod x devices of a pod + position of the device in its pod."""
    held: dict[tuple[str, str], list[Device]] = {}
    for device, labels in devices.items():
        pod = pod_name(labels)
        if pod is not None:
            held.setdefault(pod, []).append(device)
    notes = [note for pod in sorted(held) if (note := _keep_last_node(held, pod, found))]
    number = ordinals(found.pods, held)
    sizes = Counter(len(each) for each in held.values())
    size = max(sizes)
    if len(sizes) > 1:
        notes.append(f"pods have {min(sizes)} to {size} devices: ranks assume {size} in each")
    ranks: dict[Device, int] = {}
    taken: dict[int, tuple[str, str]] = {}
    # Of two pods with one number the one that exists replaced the other.
    for pod in sorted(held.keys() & number.keys(), key=lambda each: (each not in found.current, each)):
        first = taken.setdefault(number[pod], pod)
        if first != pod:
            notes.append(f"pods {first[1]} and {pod[1]} have the same index: the second is left out")
            continue
        for position, device in enumerate(sorted(held[pod])):
            ranks[device] = number[pod] * size + position
    return ranks, notes


def _keep_last_node(
    held: dict[tuple[str, str], list[Device]], pod: tuple[str, str], found: JobDevices
) -> str | None:
    """Leave out devices of nodes from which a pod has moved, with a note."""
    nodes = sorted({device[0] for device in held[pod]}, key=natural)
    if len(nodes) < 2:
        return None
    last = found.node_of_pod.get(pod)
    kept = last if last in nodes else nodes[-1]
    held[pod] = [device for device in held[pod] if device[0] == kept]
    left = _few([each for each in nodes if each != kept])
    return f"pod {pod[1]} moved: only samples of {kept} are used, not of {left}"


def _by_nodes(devices: Mapping[Device, Labels], label_map: LabelMap) -> tuple[dict[Device, int], list[str]]:
    """Rank = number of the node x devices of a node + position of the device on its node."""
    held: dict[str, list[Device]] = {}
    for device in devices:
        held.setdefault(device[0], []).append(device)
    notes = []
    if label_map.nodes:
        listed = {node: _listed_name(node, label_map.nodes) for node in held}
        left = sorted((node for node, name in listed.items() if name is None), key=natural)
        if left:
            notes.append(f"{len(left)} nodes are not in the map: {_few(left)}")
        order: Sequence[str] = [
            node for name in label_map.nodes for node, listed_name in listed.items() if listed_name == name
        ]
    else:
        order = sorted(held, key=natural)
        notes.append("ranks follow the names of nodes and the indices of GPUs: --labels gives another order")
    positions = _common_positions([held[node] for node in order])
    ranks: dict[Device, int] = {}
    offset = 0
    for node in order:
        own = sorted(held[node])
        for position, device in enumerate(own):
            ranks[device] = offset + (position if positions is None else positions[device[1:]])
        offset += len(own) if positions is None else len(positions)
    return ranks, notes


def _common_positions(nodes: Sequence[Sequence[Device]]) -> dict[tuple[int, str, str], int] | None:
    """Position of each device if most nodes have the same ones: a missing GPU then keeps its rank."""
    if not nodes or any(device[1] < 0 for node in nodes for device in node):
        return None
    every = sorted({device[1:] for node in nodes for device in node})
    usual = Counter(len(node) for node in nodes).most_common(1)[0][0]
    return {device: position for position, device in enumerate(every)} if len(every) == usual else None


def _listed_name(node: str, names: Sequence[str] | Mapping[str, object]) -> str | None:
    """The name in the map, which may lack the domain."""
    return next((name for name in names if node == name or node.split(".")[0] == name.split(".")[0]), None)


def _gap(unplaced: Sequence[Labels], label_map: LabelMap) -> str:
    own = label_map.labels
    lacking = (own.gpu,) if own.gpu else (*GPU_LABELS[:1], *UUID_LABELS[:1])
    names = sorted({labels.get("__name__", "?") for labels in unplaced})
    return (
        f"{len(unplaced)} series name no device ({_few(names)}): a label {' or '.join(lacking)} and "
        f"{own.node or 'Hostname'} would place them"
    )


def _few(values: Sequence[object]) -> str:
    shown = ", ".join(map(str, values[:_SHOWN]))
    return f"{shown}, ..." if len(values) > _SHOWN else shown
