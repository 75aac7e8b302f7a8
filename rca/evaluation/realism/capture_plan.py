"""What simulated twins share with a real capture: the job, the faults, their ranks and their steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rca.evaluation.judged_rows import HEALTHY
from rca.telemetry.causes import CAUSES
from rca.telemetry.job import Parallelism, Topology
from rca.telemetry.labels import Label, LabelledCause
from rca.telemetry.phases import PhaseArrays
from rca.telemetry.schema import LOAD_COLUMNS, PHASES
from rca.telemetry.window import Window

#: Fault kind of the testbed -> the simulator's variant of the same mechanism. Other kinds take any variant.
VARIANT_OF_KIND: Mapping[str, str] = {
    "cpu_quota": "quota",
    "nic_rate": "bandwidth",
    "nic_delay": "delay",
    "nic_loss": "loss",
    "fabric_rate": "fabric",
    "slow_dataset": "slow_dataset",
    "heavy_decoding": "decoding",
    "storage_throttle": "throttle",
    "copy_bandwidth": "hogs",
    "memory_pressure": "limit",
    "sequence_lengths": "packing",
    "full_last_stage": "logits",
    "killed_rank": "killed",
    "killed_device": "device",
    "hung_rank": "stopped",
}
#: Kinds whose variant depends on their scope.
VARIANT_OF_SCOPE: Mapping[tuple[str, str], str] = {
    ("cpu_hogs", "rank"): "rank_hogs",
    ("cpu_hogs", "node"): "hogs",
    ("slow_dataset", "job"): "job",
    ("checkpoint_stall", "job"): "all",
    ("checkpoint_stall", "rank"): "one",
}
#: Load columns that give the length of sequences.
SEQUENCE_COLUMNS = frozenset(LOAD_COLUMNS) - {"samples"}
#: The job has ended if the window goes on for more steps than this after the last one.
FINISHED_SILENCE = 2.0
#: Seconds between samples, for windows with too few samples to measure it.
USUAL_INTERVAL = 0.2


@dataclass(frozen=True)
class InjectedFault:
    """One fault of a capture.

    Attributes
    ----------
    cause, mechanism : str
        Catalogue id, and the kind of fault; the catalogue id again if the label has no kind.
    variant : str
        The simulator's name for the mechanism; "" if it has none.
    ranks, nodes : tuple of int
    first, last : int
        Columns of the window's steps, inclusive.
    """

    cause: str
    mechanism: str
    variant: str
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True)
class CapturePlan:
    """What a capture and its twins have in common.

    Attributes
    ----------
    group : str
        The capture's id. Cross-validation keeps one group in one fold.
    cause, mechanism : str
        Cause of the first fault, and mechanisms of all faults; both "healthy" without a fault.
    ratio : float
        Measured step time during the faults over step time before them; NaN without steps before them.
    interval_seconds : float
        Usual distance between two samples of a series.
    missing_phases : tuple of str
        Phases that the window does not time.
    sequences : bool
        The window reports the length of its sequences.
    finished : bool
        The job ended before the window did.
    """

    group: str
    cause: str
    mechanism: str
    faults: tuple[InjectedFault, ...]
    parallelism: Parallelism
    ranks_per_node: int
    n_steps: int
    interval_seconds: float
    missing_phases: tuple[str, ...]
    sequences: bool
    events: bool
    finished: bool
    benign: tuple[str, ...]
    ratio: float

    @property
    def victims(self) -> tuple[int, ...]:
        """Ranks of all faults."""
        return tuple(sorted({rank for fault in self.faults for rank in fault.ranks}))

    @property
    def stops(self) -> bool:
        """Whether a fault stops the job."""
        return any(CAUSES[fault.cause].type == "fail_stop" for fault in self.faults)

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last column (inclusive) in which any fault acts; None for a healthy job."""
        if not self.faults:
            return None
        return min(fault.first for fault in self.faults), max(fault.last for fault in self.faults)


def plan_of(name: str, window: Window, label: Label, ratio: float = float("nan")) -> CapturePlan:
    """Read from a labelled window what its twins must share.

    Parameters
    ----------
    ratio : float
        Step time during the faults over step time before them, if known.
    """
    phases = PhaseArrays.from_window(window)
    topology = window.job.topology
    extra = label.model_extra or {}
    faults = tuple(
        _injected(cause, _kind(cause, extra), phases, topology)
        for cause in label.causes
        if cause.cause in CAUSES
    )
    return CapturePlan(
        group=name,
        cause=faults[0].cause if faults else HEALTHY,
        mechanism=" + ".join(fault.mechanism for fault in faults) or HEALTHY,
        faults=faults,
        parallelism=window.job.parallelism or Parallelism(data=window.job.world_size),
        ranks_per_node=-(-topology.n_ranks // max(len(topology.node_names), 1)),
        n_steps=phases.n_steps,
        interval_seconds=sampling_interval(window),
        missing_phases=_missing(phases),
        sequences=any(name in phases.load for name in SEQUENCE_COLUMNS),
        events=window.events.num_rows > 0,
        finished=_silence(window, phases) > FINISHED_SILENCE,
        benign=tuple(map(str, extra.get("benign", ()))),
        ratio=ratio,
    )


def is_comparable(label: Label) -> bool:
    """Whether the label names everything that was injected; faults without visible effect are not named."""
    extra = label.model_extra or {}
    named = {cause.cause for cause in label.causes}
    hidden = [each for each in extra.get("injected", ()) if each.get("cause") not in named]
    return not hidden and named <= set(CAUSES)


def sampling_interval(window: Window) -> float:
    """Median distance between samples of one series, seconds."""
    metrics = window.metrics
    if metrics.num_rows < 2:
        return USUAL_INTERVAL
    from rca.telemetry.series import SeriesSet

    series = SeriesSet.from_window(window)
    gaps = np.diff(series.time)
    inner = np.ones(gaps.size, dtype=bool)
    inner[series.offsets[1:-1] - 1] = False
    gaps = gaps[inner & (gaps > 0)]
    return float(np.median(gaps)) if gaps.size else USUAL_INTERVAL


def _silence(window: Window, phases: PhaseArrays) -> float:
    """Time from the end of the last step to the end of the window, in median steps; NaN without a step."""
    step = phases.phase("step_seconds")
    ends = (phases.start_time + step)[np.isfinite(step)]
    return float((window.job.end - ends.max()) / np.nanmedian(step)) if ends.size else float("nan")


def _missing(phases: PhaseArrays) -> tuple[str, ...]:
    never = ("step_seconds", "communication_seconds")
    return tuple(name for name in PHASES if name not in phases.seconds and name not in never)


def _kind(cause: LabelledCause, extra: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and scope of the injected fault; the cause and "" if the label does not give them."""
    for each in extra.get("injected", ()):
        if each.get("cause") == cause.cause:
            return str(each.get("kind", cause.cause)), str(each.get("scope", ""))
    return cause.cause, ""


def _injected(
    cause: LabelledCause, kind: tuple[str, str], phases: PhaseArrays, topology: Topology
) -> InjectedFault:
    mechanism, scope = kind
    last = phases.n_steps - 1
    first_step = phases.steps[0] if cause.first_step is None else cause.first_step
    begin = int(np.clip(np.searchsorted(phases.steps, first_step), 0, last))
    end = (
        last if cause.last_step is None else int(np.searchsorted(phases.steps, cause.last_step, "right")) - 1
    )
    nodes = {name: index for index, name in enumerate(topology.node_names)}
    on = {int(topology.node[rank]) for rank in cause.ranks if rank < topology.n_ranks}
    named = {nodes[name] for name in cause.nodes if name in nodes}
    several = VARIANT_OF_SCOPE.get((mechanism, scope))
    return InjectedFault(
        cause=cause.cause,
        mechanism=mechanism if several is None else f"{mechanism}:{scope}",
        variant=several or VARIANT_OF_KIND.get(mechanism, ""),
        ranks=tuple(sorted(cause.ranks)),
        nodes=tuple(sorted(node for node in on | named if node >= 0)),
        first=begin,
        last=max(begin, min(end, last)),
    )
