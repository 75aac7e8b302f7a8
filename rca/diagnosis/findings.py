"""What the machines show: every signal that deviates, on its component, against a reference, since a time.

A finding needs no model. It is in every answer, whatever the verdict: also where no cause is certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rca.arrays import BoolArray, FloatArray
from rca.causal.scores import BusyEvidence
from rca.diagnosis.result import Finding
from rca.diagnosis.when_and_where import utc
from rca.features import RANK_FEATURES, FeatureSet
from rca.features.device_load import BUSIER, activity_growth
from rca.features.end_events import Event, ranks_named, read_events
from rca.features.end_origin import broke
from rca.features.machine_outliers import groups_of
from rca.features.resource_evidence import (
    RESOURCES,
    ResourceEvidence,
    compare,
    idle_devices,
    resource_names,
)
from rca.high_segment import high_segment
from rca.robust import nan_mean, nan_median
from rca.window.catalogue import channels, unit_of_channel
from rca.window.job import Topology
from rca.window.signals.signal_arrays import SignalArrays
from rca.window.window import Window

Against = Literal["peers", "other steps", "healthy machine", "events"]

#: Nats of the loudest finding, and the units (1 is remarkable) that give half of them.
LOUDEST, HALF_UNITS = 6.0, 1.5
#: Least units of a finding.
REMARKABLE = 1.0
#: Units by which all machines of a healthy job may exceed a nominal value: shared hosts are crowded, GPUs run
#: at their power cap, and allocators keep memory.
USUAL_CROWD: Mapping[str, float] = {
    "gpu_clock": 2.0,
    "nic": 3.0,
    "cpu_wait": 3.0,
    "cpu_load": 3.0,
    "memory": 3.0,
    "storage": 3.0,
    "loader_cpu": 3.0,
    "collector": 3.0,
    "device_memory": 2.0,
}
#: Units of one event: a device that failed, and an error that it corrected.
UNITS_OF_FAILURE, UNITS_OF_CORRECTION = 2.0, 1.0
#: Resource whose state an event reports, and the component of every event that is a finding.
RESOURCE_OF_EVENT: Mapping[str, str] = {"xid": "gpu_memory", "ecc": "gpu_memory", "link_down": "nic"}
_OF_EVENT: Mapping[str, str] = {
    "xid": "GPU",
    "ecc": "GPU memory",
    "link_down": "network port",
    "oom_kill": "host memory",
}
#: Most deviations for which an onset is looked for: of 16,384 ranks thousands deviate by chance.
MAX_DATED = 64
#: Least contrast of an onset, in standard errors and as a share of the deviation.
MIN_ONSET_Z, MIN_ONSET_SHARE = 6.0, 0.5

#: The part of the machine that a resource belongs to.
COMPONENTS: Mapping[str, str] = {
    "gpu_clock": "GPU",
    "gpu_heat": "GPU",
    "gpu_activity": "GPU",
    "gpu_memory": "GPU memory",
    "device_memory": "GPU memory",
    "pcie": "PCIe link",
    "nvlink": "NVLink",
    "nic": "network port",
    "tcp": "network port",
    "fabric": "network fabric",
    "cpu_wait": "CPU",
    "cpu_quota": "CPU quota",
    "cpu_load": "CPU",
    "memory": "host memory",
    "storage": "storage",
    "loader_cpu": "loader process",
    "collector": "process",
    "stopped": "process",
}
#: Resources that only busy devices can be compared by.
_OF_BUSY_DEVICES = np.array([resource_names().index(name) for name in ("gpu_clock", "pcie")])
_ACTIVITY_PER_COMPUTE = RANK_FEATURES.index("activity_per_compute")


@dataclass(frozen=True)
class Deviation:
    """A resource that deviates on a place.

    Attributes
    ----------
    ranks : tuple of int
        The ranks of the machine parts that deviate.
    units : float
        Size; 1 is remarkable to an engineer.
    moved : float, units
        The same, less what the ranks deviated in the other steps: a machine that always differed explains no
        slow steps.
    """

    resource: str
    ranks: tuple[int, ...]
    units: float
    against: Against
    moved: float


@dataclass(frozen=True)
class Scores:
    """Scores of all ranks that busy and waiting ranks may be compared by.

    Attributes
    ----------
    versus_peers, versus_past, versus_nominal : ndarray of shape (n_ranks, n_resources), units
    """

    versus_peers: FloatArray
    versus_past: FloatArray
    versus_nominal: FloatArray

    @classmethod
    def of_machines(cls, evidence: ResourceEvidence) -> Scores:
        """Of a window without steps: who waits is unknown."""
        peers = evidence.versus_peers.copy()
        peers[np.ix_(idle_devices(evidence), _OF_BUSY_DEVICES)] = np.nan
        return cls(peers, evidence.versus_past, evidence.versus_nominal)

    @classmethod
    def of_a_job(cls, features: FeatureSet, busy: BusyEvidence) -> Scores:
        """Of timed steps: without the effect of waiting on clock, power, heat and activity.

        A late rank's device is active while those of its peers wait. So activity counts per own computing
        time, or against the device's own past: its work per step is the same unless a stranger adds to it. A
        device that is more active than the others is warmer, too; then heat shows nothing.
        """
        peers, past = busy.versus_peers.copy(), busy.versus_past.copy()
        activity, heat = (resource_names().index(name) for name in ("gpu_activity", "gpu_heat"))
        peers[np.ix_(idle_devices(features.evidence), _OF_BUSY_DEVICES)] = np.nan
        active = peers[:, activity] >= REMARKABLE
        peers[active, heat] = np.nan
        per_compute = (features.rank[:, _ACTIVITY_PER_COMPUTE] - 1.0) / BUSIER
        inside = features.comparison.segment.mask(features.work.steps.size)
        measured = features.evidence
        past[:, activity] = activity_growth(features.work, measured.values, measured.others, inside)
        if np.isfinite(per_compute).any():
            peers[:, activity] = per_compute
        return cls(peers, past, features.evidence.versus_nominal)


def strength(units: float) -> float:
    """Nats by which a deviation speaks for a fault: louder is surer, up to `LOUDEST`."""
    return LOUDEST * units**2 / (units**2 + HALF_UNITS**2) if units > 0 else 0.0


def deviations(scores: Scores, topology: Topology) -> list[Deviation]:
    """Every place whose resource deviates, the loudest first."""
    found = []
    for column, resource in enumerate(resource_names()):
        peers, past = scores.versus_peers[:, column], scores.versus_past[:, column]
        beyond = scores.versus_nominal[:, column] - USUAL_CROWD.get(resource, 0.0)
        found += _on_some(resource, peers, past, topology) or _on_all(resource, past, beyond)
    return sorted(found, key=lambda each: (-each.units, each.resource, each.ranks))


def _on_some(resource: str, peers: FloatArray, past: FloatArray, topology: Topology) -> list[Deviation]:
    """Ranks above their peers, at most half of all."""
    score = np.nan_to_num(peers)
    moved = np.nan_to_num(np.where(np.isfinite(past), np.fmin(peers, 2.0 * past), peers))
    marked: BoolArray = score >= REMARKABLE
    if not marked.any() or 2 * int(marked.sum()) > marked.size:
        return []
    return [
        Deviation(resource, ranks, float(score[rows].max()), "peers", float(moved[rows].max()))
        for ranks in groups_of(marked, topology)
        for rows in [list(ranks)]
    ]


def _on_all(resource: str, past: FloatArray, beyond: FloatArray) -> list[Deviation]:
    """Most ranks above their own past, or far beyond what a healthy machine shows."""
    compared: tuple[tuple[FloatArray, Against], ...] = ((past, "other steps"), (beyond, "healthy machine"))
    for score, against in compared:
        marked = np.nan_to_num(score) >= REMARKABLE
        if 2 * int(marked.sum()) > marked.size:
            ranks = tuple(np.flatnonzero(marked).tolist())
            units = float(nan_median(score[marked]))
            return [Deviation(resource, ranks, units, against, units)]
    return []


def deviations_in_events(window: Window) -> list[Deviation]:
    """Devices and links that events report: failed, or with errors that they corrected."""
    topology = window.job.topology
    found = {
        (RESOURCE_OF_EVENT[each.kind], tuple(ranks_named(each, topology).tolist()), _size(each))
        for each in _telling(window, topology)
        if each.kind in RESOURCE_OF_EVENT
    }
    return [Deviation(name, ranks, size, "events", size) for name, ranks, size in sorted(found) if ranks]


def _telling(window: Window, topology: Topology) -> list[Event]:
    """Events in which a device fails or corrects an error, or the kernel kills a process."""
    kinds = pa.array(list(_OF_EVENT), pa.string())
    rows = window.events.filter(pc.is_in(window.events.column("kind").cast(pa.string()), value_set=kinds))
    if not rows.num_rows:
        return []
    found = read_events(replace(window, events=rows), topology)
    return [each for each in found if broke(each) or each.corrected or each.kind == "oom_kill"]


def _size(event: Event) -> float:
    return UNITS_OF_CORRECTION if event.corrected else UNITS_OF_FAILURE


def findings_in_events(window: Window, topology: Topology | None = None) -> list[Finding]:
    """One finding for each kind of event and place, dated by the first one."""
    topology = topology or window.job.topology
    held: dict[tuple[str, str | None, tuple[int, ...]], list[Event]] = {}
    for event in _telling(window, topology):
        ranks = tuple(ranks_named(event, topology).tolist())
        held.setdefault((event.kind, event.code, ranks), []).append(event)
    return [
        Finding(
            component=_OF_EVENT[kind],
            resource=RESOURCE_OF_EVENT.get(kind, kind),
            ranks=list(ranks),
            nodes=topology.nodes_of(list(ranks)),
            signal=kind,
            value=float(len(events)),
            reference=0.0,
            unit="events",
            against="events",
            strength=round(strength(max(map(_size, events))), 2),
            since=utc(min(each.time for each in events)),
            note=code or "",
        )
        for (kind, code, ranks), events in held.items()
    ]


def findings(
    found: Sequence[Deviation],
    evidence: ResourceEvidence,
    topology: Topology,
    window: Window,
    signals: SignalArrays,
) -> list[Finding]:
    """The loudest deviations, at most `MAX_DATED`, in the user's units and with their onsets in `signals`."""
    shown = [_in_words(each, evidence, topology) for each in found[:MAX_DATED]]
    dated = [_with_onset(each, signals) for each in shown if each is not None]
    return sorted([*dated, *findings_in_events(window, topology)], key=lambda each: -each.strength)


def _in_words(deviation: Deviation, evidence: ResourceEvidence, topology: Topology) -> Finding | None:
    """The channel of the resource that deviates most from the reference; None if none does."""
    rows = list(deviation.ranks)
    references: Mapping[str, FloatArray] = {
        "peers": evidence.references,
        "other steps": evidence.others,
        "healthy machine": evidence.healthy,
    }.get(deviation.against, {})
    best, most = None, 0.0
    for channel in RESOURCES[deviation.resource]:
        name = channel.channel
        if name not in evidence.values or name not in references:
            continue
        if deviation.against == "peers" and not evidence.of_peers[name][rows].any():
            continue
        values = evidence.values[name]
        value = nan_median(values[rows][None, :], axis=1)
        # Ranks that deviate are no reference, however many they are.
        others = np.delete(values, rows) if deviation.against == "peers" else references[name][rows]
        reference = nan_median(others[None, :], axis=1)
        score = float(compare(channel, value, reference)[0])
        if score > most:
            best, most = (name, float(value[0]), float(reference[0])), score
    if best is None:
        return None
    return Finding(
        component=COMPONENTS[deviation.resource],
        resource=deviation.resource,
        ranks=rows,
        nodes=topology.nodes_of(rows),
        signal=best[0],
        value=best[1],
        reference=best[2],
        unit=unit_of_channel(best[0]),
        against=deviation.against,
        strength=round(strength(deviation.units), 2),
    )


def _with_onset(finding: Finding, signals: SignalArrays) -> Finding:
    """The finding with the time from which its signal deviates; unchanged where it does all along."""
    if finding.signal not in signals.values:
        return finding
    values = signals.values[finding.signal]
    inside = np.isin(np.arange(values.shape[0]), finding.ranks)
    series = nan_mean(values[inside])
    if finding.against == "peers":
        series = series - nan_median(values[~inside])
    lower = any(each.worse == "lower" for each in channels().get(finding.signal, ()))
    deviation = abs((finding.value or 0.0) - (finding.reference or 0.0))
    segment = high_segment(
        -series if lower else series, min_z=MIN_ONSET_Z, min_contrast=MIN_ONSET_SHARE * deviation
    )
    if segment.whole or segment.first == 0:
        return finding
    since = utc(float(signals.edges[segment.first]))
    value = _usual(values[inside][:, segment.first : segment.last + 1])
    return finding.model_copy(update={"since": since} | ({} if value is None else {"value": value}))


def _usual(values: FloatArray) -> float | None:
    """Median over the ranks of their means; None if nothing is known."""
    middle = float(nan_median(nan_mean(values, axis=1)))
    return middle if np.isfinite(middle) else None
