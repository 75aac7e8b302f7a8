"""What the machines and phases of a window show by themselves: broken hardware, a cause, a stall of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.classify.decision_table import ALARM_WITH_FINDING
from rca.diagnosis.findings import REMARKABLE, UNITS_OF_CORRECTION, Deviation
from rca.window.causes import DECIDING
from rca.window.job import Topology

#: Resources whose deviation on some ranks is broken hardware, and units from which it is.
HARDWARE, BROKEN = frozenset({"gpu_clock", "gpu_memory", "pcie", "nvlink"}), 1.5
#: Hardware that slows its rank down whenever it deviates; errors that were corrected need not.
SLOWING = frozenset({"gpu_clock"})


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


def is_shown(cause: str, ranks: Sequence[int], found: Sequence[Deviation]) -> bool:
    """Whether a resource that decides on the cause deviates on a machine part of these ranks.

    A cause that only timing decides is shown.
    """
    decide = DECIDING.get(cause)
    return decide is None or any(
        each.resource in decide and each.moved >= REMARKABLE and set(ranks) & set(each.ranks)
        for each in found
    )
