"""Two faults at once: a straggler explains why others wait, never why moving data takes longer for all."""

from __future__ import annotations

from collections.abc import Sequence

from rca.arrays import FloatArray
from rca.classify.ports import Suspected
from rca.classify.settle import transfer_grew
from rca.features import FeatureSet
from rca.robust import nan_mean, nan_median
from rca.telemetry.causes import CAUSES

#: Share of the steps' growth that the collectives have to account for, and least share of a step.
OWN_MATTER, MIN_GROWTH = 0.2, 0.05
#: Causes of a rank's own that are known to hold its transfers up as well: a host that reclaims memory copies
#: into and out of its sockets late. Their price leaves it open, because it is not what they are known by.
_ALSO_LENGTHENS_TRANSFER = frozenset({"memory_pressure"})


def collectives_left_over(suspects: Sequence[Suspected], features: FeatureSet) -> bool:
    """Whether the collectives became slower by more than the suspects' causes can answer for.

    Parameters
    ----------
    suspects : sequence of Suspected
    features : FeatureSet
    """
    if not suspects or not transfer_grew(features):
        return False
    work, segment = features.work, features.comparison.segment
    if segment.whole or any(_lengthens_transfer(each.cause) for each in suspects):
        return False
    inside = segment.mask(work.steps.size)

    def grown(series: FloatArray) -> float:
        return float(nan_mean(series[inside][:, None])[0] - nan_mean(series[~inside][:, None])[0])

    transfer = grown(nan_median(work.transfer))
    return transfer >= max(OWN_MATTER * grown(work.job_step), MIN_GROWTH * work.step_reference)


def _lengthens_transfer(cause: str) -> bool:
    """Whether slower collectives are no surprise beside the cause, or nobody knows whether they are."""
    return cause not in CAUSES or "transfer" in CAUSES[cause].phases or cause in _ALSO_LENGTHENS_TRANSFER


def between_machines(causes: dict[str, float]) -> dict[str, float]:
    """Beliefs given that it is the collectives themselves; empty if no such cause is believed at all."""
    held = {
        name: chance
        for name, chance in causes.items()
        if name in CAUSES and CAUSES[name].type == "communication" and chance > 0
    }
    total = sum(held.values())
    return {name: chance / total for name, chance in held.items()} if total > 0 else {}
