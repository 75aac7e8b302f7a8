"""What the machines and phases of a window show by themselves: broken hardware, a cause, a stall of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.classify.decision_table import ALARM_WITH_FINDING
from rca.diagnosis.cause_table import OF_PHASE
from rca.diagnosis.findings import REMARKABLE, UNITS_OF_CORRECTION, Deviation
from rca.features import WINDOW_FEATURES, FeatureSet
from rca.features.late_episodes import late_threshold
from rca.robust import nan_mean, nan_median, zero_if_nan
from rca.window.causes import DECIDING
from rca.window.job import Topology

#: Resources whose deviation on some ranks is broken hardware, and units from which it is.
HARDWARE, BROKEN = frozenset({"gpu_clock", "gpu_memory", "pcie", "nvlink"}), 1.5
#: Hardware that slows its rank down whenever it deviates; errors that were corrected need not.
SLOWING = frozenset({"gpu_clock"})
#: Share of the lateness that lies in the main phase.
NEARLY_ALL = 0.75
#: Input of the largest rank above that of the median rank, below which all ranks have as much.
EQUAL_INPUT = 0.005
_IMBALANCE = WINDOW_FEATURES.index("load_imbalance")


def max_alarm(found: Sequence[Deviation], topology: Topology, resources: frozenset[str] = HARDWARE) -> float:
    """Probability of a fault from which a job is faulty at the latest: lower where hardware is broken.

    Parameters
    ----------
    resources : frozenset of str
        Hardware that counts.
    """
    broken = (each.resource in resources and _is_broken(each, topology) for each in found)
    return ALARM_WITH_FINDING if any(broken) else 1.0


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


def is_shown(
    cause: str, ranks: Sequence[int], phase: str | None, features: FeatureSet, found: Sequence[Deviation]
) -> bool:
    """Whether a finding, or the main phase by itself, shows the cause on these ranks.

    A cause that only timing decides is shown, unless the input excludes it.

    Parameters
    ----------
    phase : str or None
        The ranks' main phase.
    """
    if cause == "sequence_length_imbalance" and _has_equal_input(features):
        return False
    return cause not in DECIDING or cause == OF_PHASE.get(phase or "") or shows(cause, ranks, found)


def _has_equal_input(features: FeatureSet) -> bool:
    """Whether tokens or lengths are counted, and all ranks have as many in every step."""
    counted = {"tokens", "sum_squared_sequence_length"} & features.work.load.keys()
    return bool(counted and features.window[_IMBALANCE] < EQUAL_INPUT)


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
        whole, *grown = (float(nan_mean(each[inside]) - nan_mean(each[~inside])) for each in (own, *phases))
        parts = dict(zip(work.phases, grown, strict=True))
    else:
        return None
    longest = max(parts, key=lambda name: parts[name], default=None)
    if longest is None or not whole > 0 or not parts[longest] >= NEARLY_ALL * whole:
        return None
    return longest.removesuffix("_seconds")
