"""Two faults at once: a straggler explains why others wait, never why moving data takes longer for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rca.arrays import FloatArray
from rca.classify.components import Component
from rca.classify.link_evidence import LINK_CAUSES, ComponentCause, Ports, isolated_link_fault
from rca.classify.suspects import transfer_grew
from rca.features import FeatureSet
from rca.features.resource_evidence import resource_names
from rca.features.slow_segment import MIN_SEGMENT_Z, high_segment
from rca.robust import nan_mean, nan_median
from rca.telemetry.causes import CAUSES

#: Share of the steps' growth that the collectives have to account for, and least share of a step.
OWN_MATTER, MIN_GROWTH = 0.2, 0.05
#: A port this bad stands beside stragglers of other nodes, in units. Innocent ones are now and then, so that
#: transfers took longer for a while as well, by `FELT` of a step, or it was not so bad before.
SICK_PORT, FELT = 4.0, 0.1
#: Slow transfers of which less than this share lies in the job's slow stretch are apart from it.
APART = 0.5
#: Causes of a rank's own that are known to hold its transfers up as well: a host that reclaims memory copies
#: into and out of its sockets late. Their price leaves it open, because it is not what they are known by.
_ALSO_LENGTHENS_TRANSFER = frozenset({"memory_pressure"})


def residual_collectives(suspects: Sequence[ComponentCause], features: FeatureSet) -> bool:
    """Whether the collectives became slower by more than the suspects' causes can answer for.

    Parameters
    ----------
    suspects : sequence of ComponentCause
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


def faulty_port_of_other_node(suspects: Sequence[ComponentCause], features: FeatureSet) -> Component | None:
    """The node of a port that is far worse than any other, on which no suspect lies; None if there is none.

    Transfers may have been slow over steps that are not the stragglers', and a port's fault be hidden there.

    Parameters
    ----------
    suspects : sequence of ComponentCause
        With the likeliest cause of each, of the catalogue or not.
    features : FeatureSet
    """
    ports = Ports.from_features(features)
    if ports.queues.max(initial=0.0) < SICK_PORT or not suspects:
        return None
    if any(each.cause in LINK_CAUSES for each in suspects):
        return None
    port = isolated_link_fault(ports, features.topology)
    if port is None:
        return None
    ranks = list(port.component.ranks)
    if any(not set(ranks).isdisjoint(each.component.ranks) for each in suspects):
        return None
    became = features.evidence.versus_past[ranks, resource_names().index("nic")]
    felt = np.nan_to_num(became).max() >= SICK_PORT or _slow_for_a_while(features, suspects)
    return port.component if felt else None


def _slow_for_a_while(features: FeatureSet, suspects: Sequence[ComponentCause]) -> bool:
    """Whether transfers took longer over a stretch that the suspects do not account for.

    What lengthens transfers itself accounts for those in the job's slow stretch, which is everything where
    none was found.
    """
    series, unit = nan_median(features.work.transfer), features.work.step_reference
    if not np.isfinite(unit):
        return False
    slow = high_segment(series, min_z=MIN_SEGMENT_Z, min_contrast=FELT * unit)
    if slow.whole or not any(_lengthens_transfer(each.cause) for each in suspects):
        return not slow.whole
    of_the_job = features.comparison.segment.mask(series.size)
    return bool(of_the_job[slow.mask(series.size)].mean() < APART)


def _lengthens_transfer(cause: str) -> bool:
    """Whether slower collectives are no surprise beside the cause, or nobody knows whether they are."""
    return cause not in CAUSES or "transfer" in CAUSES[cause].phases or cause in _ALSO_LENGTHENS_TRANSFER


def between_machines(causes: dict[str, float]) -> dict[str, float]:
    """Beliefs given that it is the collectives themselves; empty if no such cause is believed at all."""
    held = {name: chance for name, chance in causes.items() if name in LINK_CAUSES and chance > 0}
    total = sum(held.values())
    return {name: chance / total for name, chance in held.items()} if total > 0 else {}
