"""Explanations of a slow job by what its machines show: which place, which cause, how likely.

Timers show who is late. Where there are none, a place whose machines stand out is the best explanation of a
job that is slow. A cause is likely only with a finding of its own: otherwise it stays open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rca.arrays import FloatArray
from rca.causal.scores import BusyEvidence
from rca.classify.beliefs import at_least, ordered, types_of
from rca.classify.classifier import Classification, Suspect
from rca.classify.components import Component
from rca.classify.decision_table import ALARM_WITH_FINDING, STALLED, STALLED_BY_INPUT, UNSHOWN_FACTOR
from rca.classify.preconditions import stalls_most_of_the_time
from rca.diagnosis.findings import REMARKABLE, UNITS_OF_CORRECTION, Deviation
from rca.diagnosis.machine_evidence import MAX_NORMAL_SCORE, most_unlike
from rca.features import RANK_FEATURES, WINDOW_FEATURES, FeatureSet
from rca.features.late_episodes import late_threshold
from rca.features.resource_evidence import resource_names
from rca.robust import nan_mean, nan_median, zero_if_nan
from rca.window.causes import DECIDING, UNKNOWN
from rca.window.job import Topology

Standing = Literal["shown", "weak", "not measured", "excluded"]

#: Resources whose deviation on some ranks is broken hardware, and units from which it is.
HARDWARE, BROKEN = frozenset({"gpu_clock", "gpu_memory", "pcie", "nvlink"}), 1.5
#: Units from which a deviation is loud.
LOUD = 2.5
#: Cause that a resource shows on single ranks, and its probability if the job is slow and the resource stands
#: out, remarkably or loudly: the share of right causes among 163 slow looked-at captures with exporters and
#: step times alone, by Laplace's rule. The load of a CPU alone shows where, and no cause.
SHOWN_IN_SLOW_JOB: Mapping[str, tuple[str, float, float]] = {
    "gpu_clock": ("gpu_throttling", 0.8, 0.93),
    "gpu_activity": ("gpu_contention", 0.5, 0.5),
    "gpu_memory": ("gpu_memory_errors", 0.5, 0.75),
    "pcie": ("pcie_degradation", 0.6, 0.85),
    "nvlink": ("nvlink_degradation", 0.5, 0.85),
    "nic": ("nic_degradation", 0.7, 0.88),
    "tcp": ("nic_degradation", 0.3, 0.75),
    "cpu_wait": ("cpu_contention", 0.13, 0.91),
    "cpu_quota": ("cpu_contention", 0.6, 0.9),
    "memory": ("memory_pressure", 0.5, 0.85),
    "storage": ("storage_degradation", 0.6, 0.91),
    "loader_cpu": ("data_loader_stall", 0.6, 0.89),
    "collector": ("runtime_gc", 0.5, 0.88),
}
#: Probability that the loudest place is the late one, remarkable or loud: of 30 such captures 28, of 42
#: simulated windows with harmless signals 11. Where the models suspect the whole job it was 16 of 157, so the
#: job stays the suspect.
RIGHT_PLACE = (0.5, 0.77)
#: A second place is as loud as this share of the loudest one.
ALSO = 0.6
#: Cause that a phase shows by itself, because no other cause of the catalogue lengthens it alone. A slow
#: storage and slow CPUs of the loader are causes of their own only with a finding.
SHOWN_BY_PHASE: Mapping[str, str] = {
    "data_loading": "data_loader_stall",
    "checkpoint": "checkpoint_stall",
    "gc": "runtime_gc",
}
#: Share of the lateness that lies in the main phase.
NEARLY_ALL = 0.75
#: Input of the largest rank above that of the median rank, below which all ranks have as much.
EQUAL_INPUT = 0.005
#: Least units of a resource that shows a place: retransmits differ between healthy nodes.
MIN_UNITS: Mapping[str, float] = {"tcp": LOUD}
_IMBALANCE = WINDOW_FEATURES.index("load_imbalance")
_ACTIVITY = RANK_FEATURES.index("activity_per_compute")
#: Resources that show a place even without a cause.
_PLACES = (*SHOWN_IN_SLOW_JOB, "cpu_load", "stopped")


def max_alarm(found: Sequence[Deviation], topology: Topology) -> float:
    """Probability of a fault from which a job is faulty at the latest: lower where hardware is broken."""
    return ALARM_WITH_FINDING if any(_is_broken(each, topology) for each in found) else 1.0


def _is_broken(deviation: Deviation, topology: Topology) -> bool:
    """Whether hardware deviates as it does in no healthy job; whole nodes may have another model of GPU."""
    if deviation.against == "events":
        return deviation.resource in HARDWARE and deviation.units > UNITS_OF_CORRECTION
    loud = deviation.against == "peers" and deviation.moved >= BROKEN
    return loud and deviation.resource in HARDWARE and not _may_be_another_model(deviation, topology)


def _may_be_another_model(deviation: Deviation, topology: Topology) -> bool:
    """Whether all GPUs of a node differ in their clock: the node may have other GPUs."""
    ranks = list(deviation.ranks)
    here = topology.node[ranks]
    whole = (
        len(ranks) > 1 and bool((here >= 0).all()) and int(np.isin(topology.node, here).sum()) == len(ranks)
    )
    return whole and deviation.resource == "gpu_clock"


@dataclass(frozen=True)
class Shown:
    """What a window shows of the causes on some ranks.

    Attributes
    ----------
    phase : str or None
        The ranks' main phase.
    unlike : ndarray of shape (n_resources,), units
        From `rca.diagnosis.machine_evidence.most_unlike`.
    equal_input : bool
        Whether the input is counted, and all ranks have as much of it.
    seen : bool
        Whether the signals are of the steps in which the ranks were late.
    """

    ranks: tuple[int, ...]
    found: tuple[Deviation, ...]
    phase: str | None
    unlike: FloatArray
    equal_input: bool
    seen: bool

    @classmethod
    def of(
        cls, ranks: Sequence[int], features: FeatureSet, busy: BusyEvidence, found: Sequence[Deviation]
    ) -> Shown:
        """Look for findings on these ranks."""
        rows = list(ranks)
        unlike = most_unlike(rows, features, busy)
        if not np.isfinite(features.rank[rows, _ACTIVITY]).any():
            # Without its computing time, a device's activity cannot be told from waiting.
            unlike[resource_names().index("gpu_activity")] = np.nan
        return cls(
            tuple(rows),
            tuple(found),
            main_phase(rows, features),
            unlike,
            _has_equal_input(features),
            _late_in_segment(rows, features),
        )

    @property
    def by_phase(self) -> str | None:
        """The cause that the main phase shows by itself."""
        return SHOWN_BY_PHASE.get(self.phase or "")

    def standing(self, cause: str) -> Standing:
        """Whether a finding shows the cause, its signals deviate a little, are normal, or were not measured.

        A cause that only timing decides is shown, unless the input excludes it.
        """
        if cause == "sequence_length_imbalance" and self.equal_input:
            return "excluded"
        decide = DECIDING.get(cause)
        if decide is None or cause == self.by_phase or shows(cause, self.ranks, self.found):
            return "shown"
        scores = self.unlike[[resource_names().index(name) for name in decide]]
        if not self.seen or not np.isfinite(scores[0]):
            return "not measured"
        return "weak" if np.nanmax(scores) >= MAX_NORMAL_SCORE else "excluded"


def _has_equal_input(features: FeatureSet) -> bool:
    """Whether tokens or lengths are counted, and all ranks have as many in every step."""
    counted = {"tokens", "sum_squared_sequence_length"} & features.work.load.keys()
    return bool(counted and features.window[_IMBALANCE] < EQUAL_INPUT)


def _late_in_segment(rows: list[int], features: FeatureSet) -> bool:
    """Whether these ranks were late mostly in the slow segment, whose signals are compared."""
    comparison = features.comparison
    late = np.nan_to_num(comparison.excess[rows]) > late_threshold(
        features.work.step_reference, comparison.noise
    )
    inside = comparison.segment.mask(late.shape[1])
    return bool(2 * late[:, inside].sum() >= late.sum())


def without_excluded(suspect: Suspect, shown: Shown) -> Suspect:
    """The suspect with less belief in causes whose signals were measured and are normal.

    What these lose goes to the cause that the late phase shows by itself; else it stays open.
    """
    kept = {
        cause: chance * (UNSHOWN_FACTOR if shown.standing(cause) == "excluded" else 1.0)
        for cause, chance in suspect.causes.items()
    }
    heir = shown.by_phase if shown.by_phase in suspect.causes else UNKNOWN
    lost = sum(suspect.causes.values()) - sum(kept.values())
    causes = ordered(kept | {heir: kept.get(heir, 0.0) + lost})
    return replace(suspect, causes=causes, types=suspect.types if heir == UNKNOWN else types_of(causes))


def shows(cause: str, ranks: Sequence[int], found: Sequence[Deviation]) -> bool:
    """Whether a resource that decides on the cause deviates on a machine part of these ranks."""
    decide = DECIDING.get(cause, ())
    return any(
        each.resource in decide and each.moved >= REMARKABLE and set(ranks) & set(each.ranks)
        for each in found
    )


def main_phase(ranks: Sequence[int], features: FeatureSet) -> str | None:
    """The phase in which nearly all lateness of these ranks lies, or by which the slow steps are longer."""
    work, comparison = features.work, features.comparison
    inside = comparison.segment.mask(work.steps.size)
    rows = list(ranks)
    late = np.nan_to_num(comparison.excess[rows]) > late_threshold(work.step_reference, comparison.noise)
    late &= inside
    if late.any():
        whole = float(comparison.excess[rows][late].sum())
        parts = {
            name: float(zero_if_nan(each[rows])[late].sum()) for name, each in comparison.phase_excess.items()
        }
    elif not comparison.segment.whole:
        own, *phases = (nan_median(each[rows]) for each in (work.own, *work.phases.values()))
        whole, *grown = (
            float(nan_mean(each[inside, None])[0] - nan_mean(each[~inside, None])[0])
            for each in (own, *phases)
        )
        parts = dict(zip(work.phases, grown, strict=True))
    else:
        return None
    longest = max(parts, key=lambda name: parts[name], default=None)
    if longest is None or not whole > 0 or not parts[longest] >= NEARLY_ALL * whole:
        return None
    return longest.removesuffix("_seconds")


def shown_by_machines(
    classification: Classification, features: FeatureSet, found: Sequence[Deviation]
) -> Classification:
    """The classification with the places that stand out as suspects, where no timer shows who is late.

    Suspects of the models stay. One whose machines stand out is at least as likely as these show.
    """
    if np.isfinite(features.work.own).any():
        return classification
    places: dict[tuple[int, ...], list[Deviation]] = {}
    for each in found:
        if (
            each.against == "peers"
            and each.resource in _PLACES
            and each.moved >= max(REMARKABLE, MIN_UNITS.get(each.resource, 0.0))
            and not _may_be_another_model(each, features.topology)
        ):
            places.setdefault(each.ranks, []).append(each)
    if classification.suspects:
        suspects = [
            _at_least(each, _suspect(each.component.ranks, places[each.component.ranks]))
            if each.component.ranks in places
            else each
            for each in classification.suspects
        ]
        return replace(classification, suspects=suspects)
    if not places:
        return classification
    loudest = max(each.moved for held in places.values() for each in held)
    suspects = [
        _suspect(ranks, held)
        for ranks, held in places.items()
        if max(each.moved for each in held) >= ALSO * loudest
    ]
    return replace(classification, suspects=suspects)


def _at_least(suspect: Suspect, shown: Suspect) -> Suspect:
    """The suspect with the larger belief of both in its place and in what its machines show."""
    probability = max(suspect.component.probability, shown.component.probability)
    known = {cause: chance for cause, chance in shown.causes.items() if cause != UNKNOWN}
    raised = {cause: max(chance, suspect.causes.get(cause, 0.0)) for cause, chance in known.items()}
    total = sum(raised.values())
    raised = {cause: chance / max(total, 1.0) for cause, chance in raised.items()}
    # The other causes share what these leave.
    others = {cause: chance for cause, chance in suspect.causes.items() if cause not in raised}
    room = max(1.0 - total, 0.0) / max(sum(others.values()), 1e-12)
    causes = ordered(raised | {cause: chance * min(room, 1.0) for cause, chance in others.items()})
    return replace(suspect, component=replace(suspect.component, probability=probability), causes=causes)


def stalled(classification: Classification, features: FeatureSet) -> Classification:
    """The classification of a job that waits for input most of the time, on all ranks together."""
    if classification.mode != "healthy" or not stalls_most_of_the_time(features):
        return classification
    causes = {"data_loader_stall": STALLED_BY_INPUT, UNKNOWN: 1.0 - STALLED_BY_INPUT}
    job = Component("job", tuple(range(features.topology.n_ranks)), STALLED)
    probability = at_least(classification.probability, "fail_slow", STALLED)
    suspects = [Suspect(job, types_of(causes), {}, causes)]
    return replace(
        classification, mode="fail_slow", probability=probability, decided=True, suspects=suspects, events=()
    )


def _suspect(ranks: tuple[int, ...], held: Sequence[Deviation]) -> Suspect:
    """A place with the causes that its resources show."""
    causes: dict[str, float] = {}
    # A slow clock keeps its GPU active while the others wait.
    explained = {"gpu_activity"} if any(each.resource == "gpu_clock" for each in held) else set()
    for each in held:
        if each.resource in SHOWN_IN_SLOW_JOB.keys() - explained:
            cause, remarkable, loud = SHOWN_IN_SLOW_JOB[each.resource]
            chance = loud if each.moved >= LOUD else remarkable
            causes[cause] = max(causes.get(cause, 0.0), chance)
    total = max(sum(causes.values()), 1.0)
    causes = {cause: chance / total for cause, chance in causes.items()}
    causes = ordered(causes | {UNKNOWN: 1.0 - sum(causes.values())})
    place = RIGHT_PLACE[max(each.moved for each in held) >= LOUD]
    component = Component("rank" if len(ranks) == 1 else "node", ranks, place)
    return Suspect(component, types_of(causes), {}, causes)
